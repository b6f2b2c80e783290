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
"$ROOT/scripts/python.sh"
told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT

# Most of the judging is waiting, so some templates are judged at a time.
MOST_AT_A_TIME=3
judge() {
  local template=$1
  "$BUILD/transship" conformance --quiet "conformance-$template:1.0" || touch "$told/$template.failed"
  [ "$TRANSSHIP_RUNTIME" = docker ] || return 0
  "$ROOT/target/venv/bin/python" tests/judge_container.py "conformance-$template:1.0" || touch "$told/$template.failed"
  [ ! -d "tests/handlers/$template" ] || "$ROOT/target/venv/bin/python" tests/handlers/judge.py "$template" || touch "$told/$template.failed"
}
judged=()
for template in "${templates[@]}"; do
  can_start "$template" || continue
  say "Judging template $template on runtime $TRANSSHIP_RUNTIME"
  build_image "container_templates/$template/conformance"
  [ "$TRANSSHIP_RUNTIME" != docker ] || [ ! -d "tests/handlers/$template" ] || build_image "tests/handlers/$template"
  [ "$(jobs -rp | wc -l)" -lt "$MOST_AT_A_TIME" ] || wait -n || true
  judge "$template" > "$told/$template" 2>&1 &
  judged+=("$template")
done
wait
matrix="| template | verdicts by transport |\n|---|---|\n" failed=
for template in "${judged[@]}"; do
  cat "$told/$template"
  # "name over shm" and, in the last line, its count.
  matrix+="| $template | $(awk '/ over /{name = $NF} / passed, /{sub(/^ */, ""); print name ": " $0}' "$told/$template" | paste -sd';' | sed 's/;/; /g') |\n"
  if [ -e "$told/$template.failed" ] || ! grep -q ' passed, ' "$told/$template"; then failed+=" $template"; fi
done
printf "$matrix"
[ -z "$failed" ] || { say "These templates did not pass:$failed"; exit 1; }
