#!/usr/bin/env bash
# Runs every question of bench/ on the private cluster, on Docker where a daemon answers: run.sh [ROWS [ROUNDS]]
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 postgresql-plpython3-15 clang libclang-dev python3-venv
if [ "${RUNTIME:-auto}" = docker ]; then
  "$ROOT/scripts/docker.sh" start
  source "$ROOT/scripts/environment.sh"
fi
"$ROOT/scripts/install.sh"
"$ROOT/scripts/python.sh"
"$ROOT/scripts/cluster.sh" start
"$ROOT/scripts/manager.sh" start
"$ROOT/target/venv/bin/python" bench/overhead/model.py
say "Building the image of the benchmark"
"$BUILD/transship" build bench/overhead/image > "$ROOT/target/build.log" 2>&1 || { tail -n 30 "$ROOT/target/build.log" >&2; exit 1; }
say "Measuring; each contender in turn, round by round"
export BENCH_RUNTIME=$("$BUILD/transship" doctor | sed -n 's/^ok *runtime: *\([^:]*\):.*/\1/p')
"$ROOT/target/venv/bin/python" bench/overhead/run.py "$@"
