//! The container manager: `transshipd` keeps replicas of UDF images running and leases them to database engines;
//! `transship` is its command line. Nothing else of the project talks to a container engine.
#![forbid(unsafe_code)]

pub mod adoption;
pub mod advice;
pub mod api;
pub mod blocking;
pub mod cache;
pub mod cancel;
pub mod catalogue;
pub mod circuit;
pub mod config;
pub mod context;
pub mod deploy;
pub mod doctor;
pub mod engine_images;
pub mod flags;
pub mod folders;
pub mod images;
pub mod kept_logs;
pub mod log;
pub mod make_dir;
pub mod metrics;
pub mod monitoring;
pub mod otlp_endpoint;
pub mod pool;
pub mod progress;
pub mod registration;
pub mod registry_login;
pub mod registry_name;
pub mod replica;
pub mod runtime;
pub mod sandbox;
pub mod setup_checks;
pub mod signature_check;
pub mod template;
pub mod traces;
