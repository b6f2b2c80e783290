#!/usr/bin/env bash
# Runs PostgreSQL's own regression suite with the library preloaded, on a cluster of its own.
source "$(dirname "$0")/../scripts/environment.sh"
"$ROOT/scripts/install.sh"

place=$PRIVATE/core
suite=$("$ROOT/tests/core_source.sh")/src/test/regress
regress=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test/regress/pg_regress
# run_suite NAME LIBRARY: results go to $place/NAME.
run_suite() {
  local name=$1 data=$place/$1/data socket=$place/$1/s
  rm -rf "${place:?}/$name"
  install -d -m 755 -o "$SERVER_USER" "$place/$name" "$data" "$socket"
  as_server "$PG_BIN/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$ROOT/target/initdb.log"
  as_server tee -a "$data/postgresql.conf" > /dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$socket'
shared_preload_libraries = '$2'
fsync = off
CONF
  as_server "$PG_BIN/pg_ctl" --pgdata="$data" --log="$place/$name/log" --silent --wait start
  as_server env PGHOST="$socket" PGPORT=5432 PGUSER=postgres "$regress" --inputdir="$suite" --outputdir="$place/$name" --dlpath="$suite" \
    --bindir="$PG_BIN" --max-concurrent-tests=20 --schedule="$suite/parallel_schedule" > "$place/$name.out" 2>&1 || true
  as_server "$PG_BIN/pg_ctl" --pgdata="$data" --mode=fast --silent --wait stop
  grep -E "tests (passed|failed)" "$place/$name.out"
}

cd "$suite"
say "Running PostgreSQL's regression suite without the library"
run_suite without ''
say "Running PostgreSQL's regression suite with the library preloaded"
run_suite with transship
if grep -q '^ All' "$place/with.out"; then exit 0; fi
# A suite of another minor version than the server's fails by itself; the library must change nothing of that.
failed() { sed -n 's/^\(test\)\? *\([a-z0-9_]*\) *\.\.\. FAILED.*/\2/p' "$1"; }
if ! diff <(failed "$place/without.out") <(failed "$place/with.out"); then
  exit 1
fi
for test in $(failed "$place/with.out"); do
  diff "$place/without/results/$test.out" "$place/with/results/$test.out" || exit 1
done
echo "The library changes no output; the tests that fail with it fail without it, in the same way."
