//! From a project, or from code in a function's body, to an image.

pub mod build;
pub mod library;
pub mod template;

use udf_project::manifest::INLINE_REPOSITORY;

/// Whether images of that name are built for engines, of sources which these have.
pub fn is_built_for_engines(name: &str) -> bool {
    let is_library =
        |name: &str| name.strip_prefix(library::LIBRARY_REPOSITORY).is_some_and(|rest| rest.starts_with('/'));
    name == INLINE_REPOSITORY || is_library(name)
}
