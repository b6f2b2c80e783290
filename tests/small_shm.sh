#!/usr/bin/env bash
# With 64 MB of /dev/shm, which is what Docker gives a database: batches in one transaction with a parallel query that needs
# its own share. For root, since the memory is mounted where nobody else sees it.
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
build_image sql/functions
"$ROOT/scripts/manager.sh" stop
"$ROOT/scripts/cluster.sh" stop
answer=$(unshare --mount bash -euo pipefail -c '
  mount --make-rprivate /
  mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
  scripts/cluster.sh start
  scripts/manager.sh start
  trap "scripts/manager.sh stop; scripts/cluster.sh stop" EXIT
  dropdb --if-exists small_shm && createdb small_shm
  psql --no-psqlrc --quiet --tuples-only --no-align -v ON_ERROR_STOP=1 -d small_shm <<SQL
CREATE EXTENSION transship;
CREATE FUNCTION add_one_arrow(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS '\''image = "regress:1.0"'\'';
CREATE FUNCTION pass_text(t text) RETURNS text LANGUAGE container IMMUTABLE AS '\''image = "regress:1.0"'\'';
CREATE FUNCTION pass_float8(x float8) RETURNS float8 LANGUAGE container IMMUTABLE AS '\''image = "regress:1.0"'\'';
CREATE TABLE wide AS SELECT x, x::float8 AS a, md5(x::text) || repeat('\''x'\'', 200) AS t FROM generate_series(1::bigint, 300000) x;
ANALYZE wide;
SET transship.batch_rows = 1000000;
SET transship.batch_time = 0;
BEGIN;
SET LOCAL max_parallel_workers_per_gather = 0;
SELECT count(pass_text(t)), sum(add_one_arrow(x)), sum(pass_float8(a)), sum(pass_float8(a + 1)) FROM wide;
SET LOCAL max_parallel_workers_per_gather = 2;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_nestloop = off;
SET LOCAL work_mem = '\''64MB'\'';
SELECT count(*) FROM (SELECT t FROM wide WHERE x < 60000) a JOIN (SELECT t FROM wide WHERE x < 60000) b USING (t);
COMMIT;
SQL')
expected='300000|45000450000|45000150000|45000450000
59999'
[ "$answer" = "$expected" ] || { echo "unexpected answer: $answer" >&2; exit 1; }
say "A parallel query has its share of 64 MB"
