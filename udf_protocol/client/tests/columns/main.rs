//! Columns in memory against a scripted server: what travels, and what becomes of answers that lie about it.

mod answers;
mod connections;
mod leases;
mod segments;
mod stage;
mod tables;
