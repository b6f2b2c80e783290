#!/usr/bin/env bash
# Runs every question of bench/ on the private cluster, on Docker where a daemon answers: run.sh [ROWS [ROUNDS]]
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" postgresql-plpython3-15
"$ROOT/scripts/up.sh"
source "$ROOT/scripts/environment.sh"
"$ROOT/scripts/python.sh"
"$ROOT/target/venv/bin/python" bench/overhead/model.py
say "Building the image of the benchmark"
build_image bench/overhead/image
say "Measuring; each contender in turn, round by round"
export BENCH_RUNTIME=$("$BUILD/transship" doctor | sed -n 's/^ok *runtime: *\([^:]*\):.*/\1/p')
"$ROOT/target/venv/bin/python" bench/overhead/run.py "$@"
