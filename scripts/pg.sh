#!/usr/bin/env bash
# A private cluster with the extension, the manager and a few sample functions; prints the psql line to connect.
source "$(dirname "$0")/environment.sh"

bring_up
say "Building the sample functions"
build_image examples/samples
PGOPTIONS='-c client_min_messages=warning' psql --quiet --set=ON_ERROR_STOP=1 --file=- <<'SQL'
CREATE EXTENSION IF NOT EXISTS transship;
ALTER EXTENSION transship UPDATE;
CREATE OR REPLACE FUNCTION add_one(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION shout(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION largest_prime_factor(n bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 10000 AS 'image = "samples:1.0"';
CREATE OR REPLACE FUNCTION log1p_of(x float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "samples:1.0"';
SQL
echo "psql '$("$ROOT/scripts/cluster.sh" dsn)'"
