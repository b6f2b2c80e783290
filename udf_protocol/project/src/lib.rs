//! What users write about functions: a UDF project's manifest, a function's body, names of images, addresses of servers; and
//! the statements that make a project's functions known to an engine. Nothing here reads a file or opens a connection.
//!
//! ```
//! use udf_project::body::FunctionBody;
//! use udf_project::ddl::{Pin, postgres};
//! use udf_project::manifest::Manifest;
//!
//! let manifest = Manifest::parse(
//!     r#"
//!     name = "flights"
//!     version = "1.0"
//!     template = "python"
//!     [[functions]]
//!     name = "arrival_delay"
//!     arguments = ["distance float8", "carrier text"]
//!     returns = "float8"
//!     "#,
//! )?;
//! let statements = postgres(&manifest, "public", &Pin::default())?;
//! assert!(statements[0].contains("LANGUAGE container"));
//!
//! let body = FunctionBody::parse(r#"image = "flights:1.0"  timeout_ms = 500"#)?;
//! assert_eq!((body.image.as_deref(), body.timeout_ms), (Some("flights:1.0"), Some(500)));
//! assert!(FunctionBody::parse("image = 5").is_err());
//! # Ok::<(), udf_types::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod allow_list;
pub mod body;
pub mod ddl;
pub mod dialect;
pub mod endpoint;
pub mod keys;
pub mod manifest;
pub mod options;
pub mod reference;
pub mod remote;
