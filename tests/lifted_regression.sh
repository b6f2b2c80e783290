#!/usr/bin/env bash
# PostgreSQL's own tests as the proof of the planner's surgery: ordinary functions are lifted (pg_ext/src/ordinary), and every
# test must give what it gives with the same library and nothing lifted, but for what tests/lifted/differences lists.
#
#   lifted_regression.sh [--level user|all] [--rows N] [--parallel] [--suites "own core plpgsql contrib isolation"]
#   lifted_regression.sh --all-forms
#   lifted_regression.sh --build
#
# N is transship.batch_rows, 0 for its default. --parallel forces parallel plans. --build makes the library only,
# target/lifted/libtransship.so. LIFTED_LIBRARY is a library to use in place of a build of this tree.
source "$(dirname "$0")/../scripts/environment.sh"

if [ "${1:-}" = --all-forms ]; then
  for level in all user; do
    for rows in 3 0 1; do
      for parallel in "" --parallel; do
        # shellcheck disable=SC2086
        "$0" --level $level --rows $rows $parallel
      done
    done
  done
  exit
fi
major=$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
built=$ROOT/target/lifted/libtransship.so
build_library() {
  say "Building the library that lifts ordinary functions"
  # With the features that all others have otherwise, so that they are compiled once.
  cargo build --quiet --release --workspace --exclude simulation --no-default-features \
    --features "pg_ext/pg$major,pg_ext/lift-ordinary,udf_codec/default"
  install -D -m 755 "$BUILD/libtransship.so" "$built"
}
if [ "${1:-}" = --build ]; then
  build_library
  exit
fi
level=all rows=3 parallel=off suites="own core plpgsql contrib isolation"
while [ $# -gt 0 ]; do
  case $1 in
    --level) level=$2; shift ;;
    --rows) rows=$2; shift ;;
    --parallel) parallel=on ;;
    --suites) suites=$2; shift ;;
    *) echo "usage: $0 [--level user|all] [--rows N] [--parallel] [--suites NAMES]" >&2; exit 2 ;;
  esac
  shift
done

source_folder=$("$ROOT/tests/core_source.sh")
place=$PRIVATE/lifted
install -d -m 755 -o "$SERVER_USER" "$place"
library=$place/transship_lifted.so
[ -n "${LIFTED_LIBRARY:-}" ] || build_library
install -m 755 "${LIFTED_LIBRARY:-$built}" "$library"
test_tools=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test

# Ends what a run that was interrupted has left.
stop_servers() {
  local name
  for name in plain lifted; do
    if is_alive "$place/$name/data/postmaster.pid"; then
      as_server "$PG_BIN/pg_ctl" --pgdata="$place/$name/data" --mode=immediate --silent --wait stop
    fi
  done
}
trap stop_servers EXIT
stop_servers

# run_suites NAME LEVEL: outputs go to $place/NAME/SUITE/results.
run_suites() {
  local name=$1 data=$place/$1/data socket=$place/$1/s suite
  rm -rf "${place:?}/$name"
  install -d -m 755 -o "$SERVER_USER" "$place/$name" "$data" "$socket"
  as_server "$PG_BIN/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$place/$name.initdb.log"
  as_server tee -a "$data/postgresql.conf" > /dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$socket'
shared_preload_libraries = '$library'
fsync = off
max_prepared_transactions = 10
wal_level = logical
statement_timeout = 900s
CONF
  if [ "$rows" != 0 ]; then echo "transship.batch_rows = $rows" | as_server tee -a "$data/postgresql.conf" > /dev/null; fi
  if [ $parallel = on ]; then
    as_server tee -a "$data/postgresql.conf" > /dev/null <<CONF
force_parallel_mode = regress
parallel_setup_cost = 0
parallel_tuple_cost = 0
min_parallel_table_scan_size = 0
# One process reads each table, or rows would come in another order each time.
parallel_leader_participation = off
max_parallel_workers_per_gather = 1
CONF
    [ "$major" -lt 16 ] || sed -i 's/^force_parallel_mode/debug_parallel_query/' "$data/postgresql.conf"
  fi
  as_server env TRANSSHIP_LIFT="$2" TRANSSHIP_LIFT_LOG="$place/$name/lifted" \
    "$PG_BIN/pg_ctl" --pgdata="$data" --log="$place/$name/log" --silent --wait start
  for suite in $suites; do run_suite "$name" "$suite" "$socket"; done
  as_server "$PG_BIN/pg_ctl" --pgdata="$data" --mode=fast --silent --wait stop
}

# run_suite NAME SUITE SOCKET
run_suite() {
  local out=$place/$1/$2 regress=("$test_tools/regress/pg_regress") tests=()
  install -d -m 755 -o "$SERVER_USER" "$out"
  case $2 in
    own) tests=(--inputdir="$ROOT/tests/lifted/own" --dbname=own_regression surgery) ;;
    core) tests=(--inputdir="$source_folder/src/test/regress" --dlpath="$source_folder/src/test/regress" \
      --schedule="$source_folder/src/test/regress/parallel_schedule" --max-concurrent-tests=20 --max-connections=$([ $parallel = on ] && echo 1 || echo 0)) ;;
    plpgsql) tests=(--inputdir="$source_folder/src/pl/plpgsql/src" --dbname=plpgsql_regression \
      $(sed -n '/^REGRESS *=/,/[^\\]$/p' "$source_folder/src/pl/plpgsql/src/Makefile" | sed 's/^REGRESS *= *//' | tr -d '\\')) ;;
    isolation)
      regress=("$test_tools/isolation/pg_isolation_regress")
      tests=(--inputdir="$source_folder/src/test/isolation" --schedule="$source_folder/src/test/isolation/isolation_schedule" --dbname=isolation_regression) ;;
    contrib)
      for module in $CONTRIB; do
        install -d -m 755 -o "$SERVER_USER" "$place/$1/contrib-$module"
        as_server env PGHOST="$3" PGPORT=5432 PGUSER=postgres "${regress[@]}" --inputdir="$source_folder/contrib/$module" \
          --outputdir="$place/$1/contrib-$module" --dlpath="$("$PG_CONFIG" --pkglibdir)" --bindir="$PG_BIN" --dbname=contrib_regression \
          $(sed -n '/^REGRESS *=/,/[^\\]$/p' "$source_folder/contrib/$module/Makefile" | sed 's/^REGRESS *= *//' | tr -d '\\') \
          >> "$out.out" 2>&1 || true
      done
      return ;;
  esac
  as_server env PGHOST="$3" PGPORT=5432 PGUSER=postgres "${regress[@]}" --outputdir="$out" --bindir="$PG_BIN" "${tests[@]}" > "$out.out" 2>&1 || true
}
# Those whose tests are SQL alone and need no settings of their own.
CONTRIB="btree_gin btree_gist citext cube dict_int dict_xsyn earthdistance fuzzystrmatch hstore intarray isn lo ltree pg_trgm pgcrypto seg tablefunc tsm_system_rows unaccent"

say "Running PostgreSQL's tests with nothing lifted and with functions lifted (level $level), in batches of $rows, parallel plans $parallel"
# Many tests of sessions that meet only wait, so the two runs go side by side.
run_suites plain none &
plain=$!
run_suites lifted "$level"
wait "$plain"
"$ROOT/tests/lifted/compare.py" --major "$major" --level "$level" --rows "$rows" --parallel "$parallel" "$place/plain" "$place/lifted"
