#!/usr/bin/env bash
# Compares random queries with PL/pgSQL, in the database that installcheck.sh left: differential.sh [QUERIES [SEED]]
source "$(dirname "$0")/environment.sh"
say "Comparing random queries with PL/pgSQL"
PGDATABASE=transship_regression exec "$ROOT/target/venv/bin/python" sql/differential.py "$@"
