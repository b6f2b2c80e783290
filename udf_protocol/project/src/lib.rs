//! What users write about functions: a UDF project's manifest, a function's body, names of images, addresses of servers; and
//! the statements that make a project's functions known to an engine. Nothing here reads a file or opens a connection.
#![forbid(unsafe_code)]

pub mod allow_list;
pub mod ddl;
pub mod dialect;
pub mod endpoint;
pub mod manifest;
pub mod reference;
pub mod remote;
