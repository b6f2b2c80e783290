//! Images that are built for engines, of sources which these have: how they are named, also in allow-lists.

use udf_project::manifest::{INLINE_REPOSITORY, Manifest};

/// The repository of the images of projects that engines send.
pub const LIBRARY_REPOSITORY: &str = "transship-library";
/// How an allow-list names projects that engines send.
pub const LIBRARY_NAME: &str = "library";

/// Whether images of that name are built for engines.
pub fn is_built_for_engines(name: &str) -> bool {
    let is_library = |name: &str| name.strip_prefix(LIBRARY_REPOSITORY).is_some_and(|rest| rest.starts_with('/'));
    name == INLINE_REPOSITORY || is_library(name)
}

/// How an allow-list names inline code.
pub fn inline_name(manifest: &Manifest) -> String {
    format!("inline:{}", manifest.template)
}

/// How an allow-list names an image.
pub fn listed_name(manifest: &Manifest) -> String {
    // Inline code is listed by its template.
    if manifest.name != INLINE_REPOSITORY && is_built_for_engines(&manifest.name) {
        return LIBRARY_NAME.to_string();
    }
    manifest.listed_name()
}
