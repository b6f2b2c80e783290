#!/usr/bin/env bash
# Asks what sqlsmith writes, and fails if the server crashes: sqlsmith.sh [QUERIES [SEED]]
source "$(dirname "$0")/../scripts/environment.sh"
"$ROOT/scripts/packages.sh" sqlsmith
bring_up
"$ROOT/scripts/python.sh"
export PGDATABASE=transship_sqlsmith
dropdb --if-exists "$PGDATABASE" 2> /dev/null
createdb "$PGDATABASE"
psql --quiet --set=ON_ERROR_STOP=1 --command="CREATE EXTENSION transship"
say "Asking what sqlsmith writes"
exec "$ROOT/target/venv/bin/python" sql/differential/smith.py "$@"
