#!/usr/bin/env bash
# Asks random questions in two ways, of PL/pgSQL and of containers, in the database that installcheck.sh left:
# differential.sh [QUESTIONS [SEED [FIRST]]]
source "$(dirname "$0")/../scripts/environment.sh"
build_image sql/differential/functions
say "Comparing random queries with PL/pgSQL"
PGDATABASE=transship_regression exec "$ROOT/target/venv/bin/python" sql/differential "$@"
