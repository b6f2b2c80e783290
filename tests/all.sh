#!/usr/bin/env bash
# Every test: Rust, Python, sql/ and the SQL Server extension's jobs against what is expected of them, on both runtimes, and
# the demo's query against a real container. Most of them wait for servers and containers, so compilers and PostgreSQL's own
# tests run beside them, with what the others leave of the processors.
source "$(dirname "$0")/../scripts/environment.sh"
declare -A beside=()
stop_all() {
  local pid part
  for pid in "${beside[@]}"; do kill -TERM -- "-$pid" 2> /dev/null || true; done
  wait
  for part in manager cluster docker; do "$ROOT/scripts/$part.sh" stop || true; done
}
trap stop_all EXIT
# Nothing is built twice here, and what that would need fills small disks.
export CARGO_INCREMENTAL=0

# Compilers that begin on one processor may have all of them in the end.
export CARGO_BUILD_JOBS
CARGO_BUILD_JOBS=$(nproc)
processors=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)

last_processor() { sed -n 's/^Cpus_allowed_list:.*[^0-9]\([0-9]*\)$/\1/p' /proc/self/status; }

# begin NAME COMMAND...: runs it beside what follows, in a session of its own, behind whatever else wants a processor.
begin() {
  local name=$1
  shift
  mkdir -p "$ROOT/target/beside"
  # Linux shares processors among sessions first, and by nice values within one. PostgreSQL's processes have sessions of their own,
  # which share alike with all others, so all of it gets one processor at most.
  setsid bash -c '{ echo 19 > /proc/self/autogroup; } 2> /dev/null || true; exec nice -n 19 taskset --cpu-list "$@"' \
    "$name" "$(last_processor)" "$@" \
    > "$ROOT/target/beside/$name.log" 2>&1 < /dev/null &
  beside[$name]=$!
}

# accompany NAME COMMAND...: the same for what mostly waits, and fails if it has to wait for a processor as well.
accompany() {
  local name=$1
  shift
  mkdir -p "$ROOT/target/beside"
  setsid "$@" > "$ROOT/target/beside/$name.log" 2>&1 < /dev/null &
  beside[$name]=$!
}

# hurry SESSION: gives what others wait for all processors, and its turn among the first.
hurry() {
  local pid
  { echo 0 > "/proc/$1/autogroup"; } 2> /dev/null || true
  for pid in $(ps -e -o sid=,pid= | awk -v session="$1" '$1 == session { print $2 }'); do
    { taskset --all-tasks --cpu-list --pid "$processors" "$pid" && renice --priority 0 --pid "$pid"; } > /dev/null 2>&1 || true
  done
}

# finish NAME...: waits for what was begun, shows what it said, and ends the run if it failed.
finish() {
  local name
  for name in "$@"; do
    [ -n "${beside[$name]:-}" ] || continue
    hurry "${beside[$name]}"
    if ! wait "${beside[$name]}"; then
      cat "$ROOT/target/beside/$name.log" >&2
      say "What ran beside the other tests failed: $name"
      exit 1
    fi
    unset "beside[$name]"
    cat "$ROOT/target/beside/$name.log"
  done
}

# run COMMAND...: the next test, unless something beside it has failed meanwhile.
run() {
  local name
  for name in "${!beside[@]}"; do
    kill -0 "${beside[$name]}" 2> /dev/null || finish "$name"
  done
  "$@"
}

# What the tests ask for, at once: nothing is installed beside them.
"$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 clang libclang-dev python3-venv openssl ca-certificates \
  valgrind gcc libc6-dev unixodbc-dev util-linux procps binutils dpkg-dev bzip2 xz-utils mmdebstrap docker-compose docker-registry apache2-utils \
  openjdk-17-jre-headless prometheus chromium python3-yaml
begin environments "$ROOT/scripts/python.sh" venv venv-arrow-udf venv-dialects venv-old-mlflow venv-kubernetes venv-spark venv-zig venv-deny venv-grafana
"$ROOT/scripts/docker.sh" start
find_docker

"$ROOT/tests/lifted_regression.sh" --build
run "$ROOT/scripts/install.sh"
finish environments
RUNTIME=docker begin images bash -c 'tests/conformance.sh --build && scripts/docker.sh gateway && scripts/mssql.sh'
LIFTED_LIBRARY=$ROOT/target/lifted/libtransship.so begin lifted "$ROOT/tests/lifted_regression.sh"
# Of one choice of features, or all of them would be compiled again with the seams of the simulation.
crates=(--package udf_types --package udf_codec --package udf_client --package udf_project --package udf_conformance --package transship_core --package transship --package container_manager --package mssql_ext --package exthost --package pg_ext --package shared_tables --package fuzz_cases --package simulation)

say "Testing the Python template"
run "$ROOT/target/venv/bin/python" -m pytest --quiet container_templates/python/tests
say "Testing the comparison of PostgreSQL's tests"
run "$ROOT/target/venv/bin/python" -m pytest --quiet tests/lifted
say "Testing the Go template"
run go test -C container_templates/go ./server
export RUNTIME=process
run "$ROOT/tests/installcheck.sh"
run "$ROOT/tests/mssqlcheck.sh"
run "$ROOT/tests/conformance.sh"
run "$ROOT/tests/small_shm.sh"
run "$ROOT/tests/tables.sh"
run "$ROOT/tests/observability.sh"
finish images lifted
begin form bash -c 'tests/form.sh && exec "$@"' form cargo test --quiet --no-run "${crates[@]}"
export RUNTIME=docker
# What the extension alone decides has been seen above, on the process runtime.
run "$ROOT/tests/installcheck.sh" language batching nulls results map map_chains aggregates errors error_context cancel transports parallel \
  aggregate_states null_rows reply_size many_calls on_error constants cache fusion tables tables_of_functions tables_of_files tables_of_dictionaries
say "Testing the packaged extension, which is linked otherwise"
EXTHOST_EXTENSION=$ROOT/target/mssql/libtransship_mssql.so run "$ROOT/tests/mssqlcheck.sh"
accompany judge "$ROOT/tests/conformance_faults.sh"
run "$ROOT/tests/conformance.sh"
run "$ROOT/tests/batches.sh"
run "$ROOT/tests/templates.sh"
run "$ROOT/tests/versions.sh"
run "$ROOT/tests/deploy.sh"
run "$ROOT/tests/spark.sh"
run "$ROOT/tests/registry.sh"
finish judge
run "$ROOT/tests/differential.sh" 250
finish form
say "Testing the protocol, the manager and the extensions, and running the simulation"
TRANSSHIP_TEST_ENGINES=docker run cargo test --quiet --no-fail-fast "${crates[@]}"
# Only root can start the daemon that this needs.
[ "$(id -u)" != 0 ] || run "$ROOT/tests/userns.sh"
run "$ROOT/tests/faults.sh" --short
say "Running the demo on Docker"
run "$ROOT/scripts/demo.sh"
say "All tests passed"
