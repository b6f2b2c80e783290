#!/usr/bin/env bash
# Checks the form of the code, which needs nothing that runs: rustfmt, and clippy for every version of PostgreSQL.
source "$(dirname "$0")/environment.sh"
say "Checking form: rustfmt and clippy"
cargo fmt --check
cargo clippy --quiet --workspace --all-targets -- --deny warnings
"$ROOT/scripts/pgrx_bindings.sh"
