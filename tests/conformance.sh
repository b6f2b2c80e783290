#!/usr/bin/env bash
# Judges the templates against docs/protocol.md, over every transport that they offer, and prints a matrix: conformance.sh [TEMPLATE...]
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
templates=("$@")
[ $# -gt 0 ] || templates=($(cd container_templates && ls -d -- */conformance | cut -d/ -f1))
matrix="| template | verdicts by transport |\n|---|---|\n" failed=
"$ROOT/scripts/python.sh"
[ "$TRANSSHIP_RUNTIME" != docker ] || "$ROOT/scripts/docker.sh" compilers
for template in "${templates[@]}"; do
  # The process runtime starts only what a template says how to start.
  [ "$TRANSSHIP_RUNTIME" != process ] || grep -qx '\[process\]' "container_templates/$template/template.toml" || continue
  say "Judging template $template on runtime $TRANSSHIP_RUNTIME"
  build_image "container_templates/$template/conformance"
  verdicts=$("$BUILD/transship" conformance --quiet "conformance-$template:1.0") || failed+=" $template"
  echo "$verdicts"
  if [ "$TRANSSHIP_RUNTIME" = docker ]; then
    "$ROOT/target/venv/bin/python" tests/judge_container.py "conformance-$template:1.0" || failed+=" $template"
  fi
  # "name over shm" and, in the last line, its count.
  matrix+="| $template | $(awk '/ over /{name = $NF} / passed, /{sub(/^ */, ""); print name ": " $0}' <<< "$verdicts" | paste -sd';' | sed 's/;/; /g') |\n"
done
printf "$matrix"
[ -z "$failed" ] || { say "These templates did not pass:$failed"; exit 1; }
