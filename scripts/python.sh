#!/usr/bin/env bash
# A virtual environment for tests, model training and benchmarks under target/venv: python.sh PACKAGE...
source "$(dirname "$0")/environment.sh"
"$ROOT/scripts/packages.sh" python3-venv
venv=$ROOT/target/venv
[ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
wanted=$(printf '%s\n' "$@" | sort)
[ "$(cat "$venv/installed" 2>/dev/null)" = "$wanted" ] && exit 0
say "Installing $* into target/venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
printf '%s\n' "$wanted" > "$venv/installed"
