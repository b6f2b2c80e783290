#!/usr/bin/env bash
# Every test: Rust, Python, sql/ and the SQL Server extension's jobs against what is expected of them, on both runtimes, and
# the demo's query against a real container.
source "$(dirname "$0")/environment.sh"
stop_all() { for part in manager cluster docker; do "$ROOT/scripts/$part.sh" stop || true; done; }
trap stop_all EXIT
# Nothing is built twice here, and what that would need fills small disks.
export CARGO_INCREMENTAL=0

"$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 clang libclang-dev
"$ROOT/scripts/docker.sh" start
source "$ROOT/scripts/environment.sh"
"$ROOT/scripts/python.sh"

say "Checking form: rustfmt and clippy"
cargo fmt --check
cargo clippy --quiet --workspace --all-targets -- --deny warnings
"$ROOT/scripts/pgrx_bindings.sh"
python3 tests/imports.py udf_protocol/*
say "Testing the protocol, the manager, the SQL Server extension and its test host"
TRANSSHIP_TEST_ENGINES=docker cargo test --quiet --package udf_types --package udf_codec --package udf_client --package udf_project --package udf_conformance --package container_manager --package mssql_ext --package exthost
say "Testing the Python template"
"$ROOT/target/venv/bin/python" -m pytest --quiet container_templates/python/tests
say "Testing the Go template"
(cd container_templates/go && go test ./server)
"$ROOT/scripts/conformance_faults.sh"
for runtime in process docker; do
  RUNTIME=$runtime "$ROOT/scripts/installcheck.sh"
  RUNTIME=$runtime "$ROOT/scripts/mssqlcheck.sh"
  RUNTIME=$runtime "$ROOT/scripts/conformance.sh"
done
RUNTIME=process "$ROOT/scripts/small_shm.sh"
RUNTIME=docker "$ROOT/scripts/templates.sh"
RUNTIME=docker "$ROOT/scripts/versions.sh"
RUNTIME=docker "$ROOT/scripts/deploy.sh"
RUNTIME=docker "$ROOT/scripts/spark.sh"
RUNTIME=docker "$ROOT/scripts/registry.sh"
"$ROOT/scripts/mssql.sh"
say "Testing the packaged extension, which is linked otherwise"
RUNTIME=docker EXTHOST_EXTENSION=$ROOT/target/mssql/libtransship_mssql.so "$ROOT/scripts/mssqlcheck.sh" mssql_ext/tests/test_jobs.py mssql_ext/tests/test_process.py
"$ROOT/scripts/differential.sh" 500
"$ROOT/scripts/lifted_regression.sh"
say "Running the demo on Docker"
RUNTIME=docker "$ROOT/scripts/demo.sh"
say "All tests passed"
