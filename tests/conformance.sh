#!/usr/bin/env bash
# Judges the templates against docs/protocol.md, over every transport that they offer, and prints a matrix:
# conformance.sh [--build] [TEMPLATE...].  --build builds their images only, of what is built and installed already.
source "$(dirname "$0")/../scripts/environment.sh"

only_build=
if [ "${1:-}" = --build ]; then
  only_build=yes
  shift
else
  bring_up
fi
templates=("$@")
[ $# -gt 0 ] || templates=($(cd container_templates && ls -d -- */conformance | cut -d/ -f1))
# The process runtime starts only what a template says how to start.
can_start() { [ "$TRANSSHIP_RUNTIME" != process ] || grep -qx '\[process\]' "container_templates/$1/template.toml"; }
[ "$TRANSSHIP_RUNTIME" != docker ] || "$ROOT/scripts/docker.sh" compilers
if [ -n "$only_build" ]; then
  # The private manager may have another runtime meanwhile.
  own=$(mktemp -d /tmp/ts-XXXXXX)
  trap 'kill "$own_manager"; wait "$own_manager" || true; rm -rf "$own"' EXIT
  start_own_manager "$own"
  for template in "${templates[@]}"; do
    ! can_start "$template" || build_image "container_templates/$template/conformance"
  done
  exit
fi
matrix="| template | verdicts by transport |\n|---|---|\n" failed=
"$ROOT/scripts/python.sh"
for template in "${templates[@]}"; do
  can_start "$template" || continue
  say "Judging template $template on runtime $TRANSSHIP_RUNTIME"
  build_image "container_templates/$template/conformance"
  verdicts=$("$BUILD/transship" conformance --quiet "conformance-$template:1.0") || failed+=" $template"
  echo "$verdicts"
  if [ "$TRANSSHIP_RUNTIME" = docker ]; then
    "$ROOT/target/venv/bin/python" tests/judge_container.py "conformance-$template:1.0" || failed+=" $template"
    if [ -d "tests/handlers/$template" ]; then
      build_image "tests/handlers/$template"
      "$ROOT/target/venv/bin/python" tests/handlers/judge.py "$template" || failed+=" $template"
    fi
  fi
  # "name over shm" and, in the last line, its count.
  matrix+="| $template | $(awk '/ over /{name = $NF} / passed, /{sub(/^ */, ""); print name ": " $0}' <<< "$verdicts" | paste -sd';' | sed 's/;/; /g') |\n"
done
printf "$matrix"
[ -z "$failed" ] || { say "These templates did not pass:$failed"; exit 1; }
