#!/usr/bin/env bash
# Dumps the database that installcheck.sh left, restores it elsewhere, and compares what container functions give.
source "$(dirname "$0")/../scripts/environment.sh"
say "Dumping, restoring and comparing"
question="SELECT add_one(1), shout('a'), (span(5, 3)).high, (SELECT mean(x) FROM numbers WHERE x <= 9), (SELECT count(*) FROM divisors(12)), mine(1),
  (SELECT count(*) FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x bigint, total bigint)),
  (SELECT sum(s.x) || ' ' || count(s.t) FROM numbers n JOIN dumped_numbers s USING (x) WHERE n.x <= 5), (SELECT string_agg(name || rows || coalesce(follows, ''), ' ' ORDER BY name) FROM transship.shared_tables),
  (SELECT string_agg(tgname || tgenabled::text, ' ' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = 'dumped_source'::regclass),
  (SELECT count(*) || ' ' || sum(id) FROM dumped_follower),
  (SELECT md5(string_agg(prosrc, '' ORDER BY proname, oidvectortypes(proargtypes))) FROM pg_proc p JOIN pg_language l ON l.oid = prolang WHERE lanname = 'container')"
ask() { psql --no-psqlrc --no-align --tuples-only --set=ON_ERROR_STOP=1 --dbname="$1" --command="$question"; }
run() { PGOPTIONS='-c client_min_messages=warning' psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --output=/dev/null "$@"; }

from=transship_regression to=transship_restored
run --dbname=$from --command="CREATE SERVER dumped FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'unix:$PRIVATE/m/misbehaving.sock')" \
  --command="SELECT transship.share('dumped_numbers', 'SELECT x, t FROM numbers', 'x', 't')" \
  --command="CREATE USER MAPPING FOR postgres SERVER dumped OPTIONS (token 'secret')" --command="SET check_function_bodies = off" \
  --command="CREATE FUNCTION mine(x bigint) RETURNS bigint LANGUAGE container AS E'server = \"dumped\"\nfunction = \"token_length\"'"
run --dbname=$from --command="CREATE TABLE dumped_source (id int); INSERT INTO dumped_source VALUES (1), (2), (3)" \
  --command="SELECT transship.share('dumped_follower', 'SELECT id FROM dumped_source WHERE id <> 2', 'id', follow => true)" \
  --command="INSERT INTO dumped_source VALUES (4)"
run --dbname=postgres --command="DROP DATABASE IF EXISTS $to WITH (FORCE)" --command="CREATE DATABASE $to"
pg_dump --dbname=$from | run --dbname=$to --file=-
before=$(ask $from) after=$(ask $to)
# What was restored follows.
run --dbname=$to --command="INSERT INTO dumped_source VALUES (10)" --command="UPDATE dumped_source SET id = 20 WHERE id = 1"
followed=$(psql --no-psqlrc --no-align --tuples-only --dbname=$to --command="SELECT count(*), sum(id) FROM dumped_follower")
run --dbname=postgres --command="DROP DATABASE $to WITH (FORCE)"
# So does what is restored in two parts, in whatever order the rows come: those of the source may be in the dump's segments, too.
archive=$(mktemp -d)
trap 'rm -r "$archive"' EXIT
pg_dump --format=custom --file="$archive/dump" --dbname=$from
for order in "dumped_source followed_tables table_chunks table_segments" "followed_tables table_chunks table_segments dumped_source" \
  "followed_tables dumped_source table_chunks table_segments" "table_chunks table_segments followed_tables dumped_source"; do
  run --dbname=postgres --command="CREATE DATABASE $to"
  for table in $order; do pg_restore --list "$archive/dump" | grep "TABLE DATA [a-z]* $table "; done > "$archive/list"
  PGOPTIONS='-c client_min_messages=error' pg_restore --exit-on-error --schema-only --dbname=$to "$archive/dump"
  PGOPTIONS='-c client_min_messages=error' pg_restore --exit-on-error --data-only --use-list="$archive/list" --dbname=$to "$archive/dump"
  run --dbname=$to --command="INSERT INTO dumped_source VALUES (10)"
  parts=$(psql --no-psqlrc --no-align --tuples-only --dbname=$to --command="SELECT count(*), sum(id) FROM dumped_follower")
  run --dbname=postgres --command="DROP DATABASE $to WITH (FORCE)"
  [ "$parts" = '4|18' ] || { echo "restored in the order $order: $parts" >&2; exit 1; }
done
run --dbname=$from --command="DROP SERVER dumped CASCADE" --command="DROP FUNCTION mine" --command="SELECT transship.unshare('dumped_numbers')" \
  --command="SELECT transship.unshare('dumped_follower')" --command="DROP TABLE dumped_source"
if [ "$before" != "$after" ] || [ "$followed" != '4|37' ]; then
  printf 'followed: %s\n' "$followed" >&2
  printf 'before: %s\nafter:  %s\n' "$before" "$after" >&2
  exit 1
fi
echo "Dumped and restored: $after" | cut -d'|' -f1-9
