//! From a project, or from code in a function's body, to an image.

pub mod build;
pub mod library;
