#!/usr/bin/env bash
# The private PostgreSQL cluster: cluster.sh start | stop | dsn
source "$(dirname "$0")/environment.sh"
data=$PRIVATE/pg/data

case ${1:-} in
  start)
    if [ ! -e "$data/PG_VERSION" ]; then
      say "Making a private PostgreSQL cluster in $PRIVATE/pg"
      rm -rf "$PRIVATE/pg"
      install -d -m 755 -o "$SERVER_USER" "$PRIVATE/pg" "$PRIVATE/s"
      as_server "$PG_BIN/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$ROOT/target/initdb.log"
      as_server tee -a "$data/postgresql.conf" > /dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$PRIVATE/s'
session_preload_libraries = 'transship'
transship.manager_socket = '$TRANSSHIP_SOCKET'
fsync = off
shared_buffers = 1GB
max_connections = 300
max_wal_size = 4GB
CONF
    fi
    # A server that runs with an older library is started again.
    if is_alive "$data/postmaster.pid" && [ "$("$PG_CONFIG" --pkglibdir)/transship.so" -nt "$data/postmaster.pid" ]; then
      "$0" stop
    fi
    if ! is_alive "$data/postmaster.pid"; then
      say "Starting the private cluster"
      as_server env RUST_BACKTRACE=1 ${TRANSSHIP_PRELOAD:+LD_PRELOAD="$TRANSSHIP_PRELOAD"} "$PG_BIN/pg_ctl" --pgdata="$data" --log="$PRIVATE/pg/log" --silent --wait start
    fi
    ;;
  stop)
    if is_alive "$data/postmaster.pid"; then
      say "Stopping the private cluster"
      as_server "$PG_BIN/pg_ctl" --pgdata="$data" --mode=fast --silent --wait stop
    fi
    ;;
  dsn) echo "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE" ;;
  *) echo "usage: $0 start | stop | dsn" >&2; exit 2 ;;
esac
