#!/usr/bin/env bash
# Runs PostgreSQL's own regression suite with the library preloaded, on a cluster of its own. The suite comes from
# Debian's source package, of the version nearest to the server's that Debian still has.
source "$(dirname "$0")/environment.sh"
"$ROOT/scripts/packages.sh" dpkg-dev bzip2 xz-utils gcc
"$ROOT/scripts/install.sh"

place=$PRIVATE/core
major=$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
mkdir -p "$place/apt/parts" "$place/apt/lists/partial"
if ! compgen -G "$place/postgresql-*/src/test/regress/regress.c" > /dev/null; then
  say "Fetching the source of PostgreSQL $major"
  sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$place/apt/parts/src.sources"
  options=(-o "Dir::Etc::SourceList=$place/apt/none" -o "Dir::Etc::SourceParts=$place/apt/parts" -o "Dir::State::lists=$place/apt/lists")
  touch "$place/apt/none"
  (
    cd "$place"
    apt-get "${options[@]}" --quiet=2 update
    for version in $(apt-cache "${options[@]}" showsrc "postgresql-$major" | sed -n 's/^Version: //p' | sort --version-sort --reverse); do
      apt-get "${options[@]}" --quiet=2 source --download-only "postgresql-$major=$version" && break
    done
    tar --extract --file "$(ls postgresql-*.orig.tar.bz2)"
  ) > "$ROOT/target/core_source.log" 2>&1 || { tail -n 20 "$ROOT/target/core_source.log" >&2; exit 1; }
fi
cd "$place"/postgresql-*/src/test/regress
say "Building the suite's library"
gcc -shared -fPIC -I"$("$PG_CONFIG" --includedir-server)" -o regress.so regress.c

data=$place/data socket=$place/s
rm -rf "$data" "$socket"
install -d -m 755 -o "$SERVER_USER" "$data" "$socket" "$place/results"
chown -R "$SERVER_USER" .
as_server "$PG_BIN/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync > "$ROOT/target/initdb.log"
as_server tee -a "$data/postgresql.conf" > /dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$socket'
shared_preload_libraries = 'transship'
fsync = off
CONF
as_server env -u RUST_BACKTRACE "$PG_BIN/pg_ctl" --pgdata="$data" --log="$place/results/log" --silent --wait start
trap 'as_server "$PG_BIN/pg_ctl" --pgdata="$data" --mode=fast --silent --wait stop' EXIT
say "Running PostgreSQL's regression suite with the library preloaded"
regress=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test/regress/pg_regress
export PGHOST=$socket
as_server env PGHOST="$socket" PGPORT=5432 PGUSER=postgres "$regress" --inputdir=. --outputdir="$place/results" --dlpath=. --bindir="$PG_BIN" \
  --max-concurrent-tests=20 --schedule=./parallel_schedule || {
  tail -n 200 "$place/results/regression.diffs" >&2
  exit 1
}
