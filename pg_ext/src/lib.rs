//! PostgreSQL extension "transship": functions written in LANGUAGE container.
//!
//! A query's way: [`planner`] finds container calls in the finished plan and lifts them into "Container Batch" nodes;
//! [`batch_scan`] runs such a node; [`datum`] converts values; `udf_protocol` does the rest. Calls in all other places
//! come in through [`language`] and [`single_call`]. `docs/architecture.md` is the map.

#![cfg_attr(feature = "lift-ordinary", allow(dead_code, reason = "what reaches containers has no caller there"))]

mod aggregate;
mod allowed;
mod batch_scan;
mod cache;
mod chosen_images;
mod datum;
mod entry_points;
mod function;
mod host;
mod images;
mod language;
mod map;
mod observed;
#[cfg(feature = "lift-ordinary")]
mod ordinary;
mod pg;
mod pieces;
mod planner;
mod query;
mod report;
mod result_set;
mod server;
mod session;
mod settings;
mod single_call;
mod statistics;
mod stream;
mod tables;

pgrx::pg_module_magic!();

/// Called once when a process loads the library.
#[pgrx::pg_guard]
extern "C-unwind" fn _PG_init() {
    settings::define();
    settings::define_observation();
    report::install();
    tables::memory::install();
    batch_scan::register();
    planner::install();
}
