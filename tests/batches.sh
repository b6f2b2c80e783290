#!/usr/bin/env bash
# Calls functions of whole batches and streams in templates with servers of their own, in every form that columns have:
# batches.sh [TEMPLATE...].  It needs Docker, and takes what is built and installed already.
source "$(dirname "$0")/../scripts/environment.sh"

templates=("$@")
[ $# -gt 0 ] || templates=($(cd tests/batches && ls -d -- */transship.toml | cut -d/ -f1))
"$ROOT/scripts/docker.sh" start
find_docker
"$ROOT/scripts/docker.sh" compilers
"$ROOT/scripts/python.sh"
own=$(mktemp -d /tmp/ts-XXXXXX)
trap 'kill "$own_manager"; wait "$own_manager" || true; rm -rf "$own"' EXIT
export TRANSSHIP_RUNTIME=docker
start_own_manager "$own"
for template in "${templates[@]}"; do
  say "Calling functions of batches in template $template"
  build_image "tests/batches/$template"
  "$ROOT/target/venv/bin/python" tests/batches/judge.py "batches-$template:1.0"
done
