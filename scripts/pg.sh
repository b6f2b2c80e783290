#!/usr/bin/env bash
# A private cluster with the extension, the manager and a few sample functions; prints the psql line to connect.
source "$(dirname "$0")/environment.sh"

"$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 clang libclang-dev python3-venv
if [ "${RUNTIME:-auto}" = docker ]; then
  "$ROOT/scripts/docker.sh" start
  source "$ROOT/scripts/environment.sh"
fi
"$ROOT/scripts/install.sh"
"$ROOT/scripts/cluster.sh" start
"$ROOT/scripts/manager.sh" start
say "Building the sample functions"
"$BUILD/transship" build examples/samples > "$ROOT/target/build.log" 2>&1 || { tail -n 30 "$ROOT/target/build.log" >&2; exit 1; }
PGOPTIONS='-c client_min_messages=warning' psql --quiet --set=ON_ERROR_STOP=1 --file=- <<'SQL'
CREATE EXTENSION IF NOT EXISTS transship;
CREATE OR REPLACE FUNCTION add_one(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION shout(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION largest_prime_factor(n bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 10000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION log1p_of(x float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
SQL
echo "psql '$("$ROOT/scripts/cluster.sh" dsn)'"
