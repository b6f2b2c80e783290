#!/usr/bin/env bash
# Judges the judge: `transship conformance` must name what is wrong with a server that breaks one clause of docs/protocol.md.
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/install.sh"
"$ROOT/scripts/python.sh"
say "Judging servers with one fault each"
"$ROOT/target/venv/bin/python" container_manager/tests/faults/faults.py "$BUILD/transship"
