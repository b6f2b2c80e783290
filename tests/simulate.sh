#!/usr/bin/env bash
# The simulation's long form: many seeds, built as for a release. SEEDS says how many, FIRST which is the first. With SEED it repeats
# one, and shows what happens.
source "$(dirname "$0")/../scripts/environment.sh"
cargo build --quiet --release --package simulation
if [ -n "${SEED:-}" ]; then
  exec "$ROOT/target/release/simulate" --seed "$SEED"
fi
exec "$ROOT/target/release/simulate" --seeds "${SEEDS:-100000}" --first "${FIRST:-0}" --jobs "$(nproc)"
