//! From a project, or from code in a function's body, to an image.

pub mod build;
pub mod library;
pub mod project;
pub mod upload;
