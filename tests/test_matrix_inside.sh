#!/usr/bin/env bash
# What test_matrix.sh runs in a container: builds the extension for one version of PostgreSQL, and runs sql/ on it, or, with
# LIFTED, PostgreSQL's own tests.
set -euo pipefail
version=$1
bin=/usr/lib/postgresql/$version/bin
target=$PWD/target/matrix/$version
export CARGO_TARGET_DIR=$target/cargo PGRX_PG_CONFIG_PATH=$bin/pg_config
# The manager on the host knows the server's user by its number.
usermod --uid "$SERVER_UID" postgres
if [ -n "$LIFTED" ]; then
  cargo build --quiet --release --package pg_ext --no-default-features --features "pg$version,lift-ordinary"
  export PG_CONFIG=$bin/pg_config LIFTED_LIBRARY=$CARGO_TARGET_DIR/release/libtransship.so
  # shellcheck disable=SC2086
  exec tests/lifted_regression.sh $LIFTED
fi
cargo build --quiet --release --package pg_ext --no-default-features --features "pg$version"
install -m 755 "$CARGO_TARGET_DIR/release/libtransship.so" "$("$bin/pg_config" --pkglibdir)/transship.so"
install -m 644 pg_ext/transship.control pg_ext/transship--*.sql "$("$bin/pg_config" --sharedir)/extension/"

data=/var/tmp/data socket=/var/tmp/socket
install -d -m 755 -o postgres "$data" "$socket" "$target/results"
as_server() { setpriv --reuid postgres --regid postgres --init-groups env HOME=/tmp "$@"; }
as_server "$bin/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$target/initdb.log"
cat >> "$data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$socket'
session_preload_libraries = 'transship'
transship.manager_socket = '$TRANSSHIP_SOCKET'
fsync = off
shared_buffers = 256MB
CONF
as_server "$bin/pg_ctl" --pgdata="$data" --log="$target/results/log" --silent --wait start

# Tests that need further servers on the host are left to the host's version: dialects, tls.
tests=(language batching surgery guarded nulls types built_types results map map_chains aggregates cancel transports prepared parallel statements settings update)
tests+=(security_context aggregate_states null_rows row_types statistics many_calls constants on_error reply_size errors error_context dba encodings
  allowed_images acting_constraints arrow_udf owners cache fusion tables tables_followed tables_of_functions tables_of_files tables_of_dictionaries vector
  merge_by_source)
[ "$version" -lt 18 ] || tests+=(since_18)
# expected/VERSION/ has what this version says otherwise.
rm -rf "$target/input" && mkdir -p "$target/input/expected"
cp -r sql specs "$target/input/"
cp expected/*.out "$target/input/expected/"
if [ -d "expected/$version" ]; then cp "expected/$version"/*.out "$target/input/expected/"; fi
export PGHOST=$socket PGPORT=5432 PGUSER=postgres PG_REGRESS_DIFF_OPTS=-u PGOPTIONS="-c statement_timeout=120s"
status=0
"$(dirname "$("$bin/pg_config" --pgxs)")/../../src/test/regress/pg_regress" --inputdir="$target/input" --expecteddir="$target/input" --outputdir="$target/results" \
  --bindir="$bin" --dbname=transship_regression --load-extension=transship setup "${tests[@]}" || status=$?
mkdir -p "$target/isolation"
"$(dirname "$("$bin/pg_config" --pgxs)")/../../src/test/isolation/pg_isolation_regress" --inputdir="$target/input" --expecteddir="$target/input" \
  --outputdir="$target/isolation" --bindir="$bin" --dbname=transship_regression --use-existing \
  concurrent_update replace_function replace_cached lateral_set shared_table followed_table || status=$?
as_server "$bin/pg_ctl" --pgdata="$data" --mode=fast --silent --wait stop
[ $status = 0 ] || cat "$target"/{results,isolation}/regression.diffs >&2 2> /dev/null || true
exit $status
