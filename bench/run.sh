#!/usr/bin/env bash
# Runs the questions of bench/ on the private cluster, on Docker where a daemon answers: run.sh [overhead|session|small|cache|tables|fusion|scaling|batches|codecs|transfer|sqlserver|remote [ROWS [ROUNDS]]]
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" postgresql-plpython3-15
bring_up
"$ROOT/scripts/python.sh" venv venv-mlflow
"$ROOT/target/venv/bin/python" bench/overhead/model.py
say "Building the image of the benchmark"
build_image bench/overhead/image
build_image sql/functions
say "Measuring; each contender in turn, round by round"
export BENCH_RUNTIME=$("$BUILD/transship" doctor | sed -n 's/^ok *runtime: *\([^:]*\):.*/\1/p')
# bench/small compares a handler in Rust.
[ "$BENCH_RUNTIME" != docker ] || "$ROOT/scripts/docker.sh" compilers
# A network to measure needs root.
if [ "$(id -u)" = 0 ]; then all="overhead session small cache tables fusion scaling batches codecs transfer sqlserver remote"; else all="overhead session small cache tables fusion scaling batches codecs transfer sqlserver"; fi
questions=${1:-$all}
shift || true
for question in $questions; do "$ROOT/target/venv/bin/python" "bench/$question/run.py" "$@"; done
