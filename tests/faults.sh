#!/usr/bin/env bash
# Breaks containers, manager, Docker daemon, backends, network and satellite process under running queries, and asks for right
# answers or one clear error each time: faults.sh [--short] [PYTEST ARGUMENTS...]. RUNTIME says what runs containers.
# --short leaves out what takes long.
source "$(dirname "$0")/../scripts/environment.sh"

chosen=()
if [ "${1:-}" = --short ]; then
  shift
  chosen=(-m "not long")
fi
"$ROOT/scripts/packages.sh" util-linux procps openssl
bring_up
"$ROOT/scripts/python.sh"
say "Building the image that misbehaves"
build_image tests/faults/image
# The tests start one of their own in its place, with short patience.
"$ROOT/scripts/manager.sh" stop
say "Breaking things with runtime $TRANSSHIP_RUNTIME"
"$ROOT/target/venv/bin/python" -m pytest --quiet -p no:cacheprovider --durations=5 "${chosen[@]}" "${@:-tests/faults}"
