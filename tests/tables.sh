#!/usr/bin/env bash
# Shared tables on a server of their own and its standby: many sessions, a crash, prepared transactions, and memory that is taken away.
source "$(dirname "$0")/../scripts/environment.sh"

if [ "${1:-}" != inside ]; then
  "$ROOT/scripts/install.sh"
  "$ROOT/scripts/python.sh" venv
  # Other servers of the same user keep their tables in the same folder of the host's memory, of which root can give these one of their own.
  if [ "$(id -u)" = 0 ]; then
    unshare --mount bash -euo pipefail -c 'mount --make-rprivate /; mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm; exec "$@"' inside "$0" inside
  else
    "$0" inside
  fi
  say "Shared tables hold what they promise"
  exit
fi

ctl() { as_server "$PG_BIN/pg_ctl" --silent --wait "$@"; }
place=$(mktemp -d /tmp/transship-XXXXXX)
stop_all() {
  ctl --pgdata="$place/standby" --mode=immediate stop || true
  ctl --pgdata="$place/primary" --mode=immediate stop || true
  rm -rf "$place"
}
trap stop_all EXIT
[ "$(id -u)" != 0 ] || chown "$SERVER_USER" "$place"
as_server "$PG_BIN/initdb" --pgdata="$place/primary" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$place/initdb.log"
as_server tee -a "$place/primary/postgresql.conf" > /dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$place'
session_preload_libraries = 'transship'
fsync = off
max_prepared_transactions = 4
wal_level = logical
wal_retrieve_retry_interval = 100ms
CONF
ctl --pgdata="$place/primary" --log="$place/primary.log" --options="-p 5433" start
as_server "$PG_BIN/pg_basebackup" --host="$place" --port=5433 --username=postgres --pgdata="$place/standby" --write-recovery-conf --no-sync
ctl --pgdata="$place/standby" --log="$place/standby.log" --options="-p 5434" start
"$ROOT/target/venv/bin/python" "$ROOT/tests/shared_tables.py" "$place" 5433 5434
