#!/usr/bin/env bash
# Tests the SQL Server extension in the test host, beside PostgreSQL, on the private manager: mssqlcheck.sh [PYTEST ARGUMENTS...]
# EXTHOST_EXTENSION is the extension to test; the release build if left out. RUNTIME says what runs containers.
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" valgrind gcc libc6-dev unixodbc-dev util-linux
bring_up
"$ROOT/scripts/python.sh"
say "Building the images that the tests call"
build_image sql/functions
build_image examples/samples
"$ROOT/scripts/flights.sh"
PGDSN=$("$ROOT/scripts/cluster.sh" dsn)
export PGDSN
export EXTHOST_EXTENSION=${EXTHOST_EXTENSION:-$BUILD/libtransship_mssql.so}
say "Testing ${EXTHOST_EXTENSION#"$ROOT"/} in the test host with runtime $TRANSSHIP_RUNTIME"
"$ROOT/target/venv/bin/python" -m pytest --quiet "${@:-mssql_ext/tests}"
