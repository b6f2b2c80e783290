# Sourced by the other scripts and by those under tests/: where things are. Everything private lies under target/private; where the path is too
# long for sockets, or the database's user cannot get there, it lies under /tmp instead and target/private points to it.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
export PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
PG_BIN=$(dirname "$PG_CONFIG")
export PGRX_PG_CONFIG_PATH=${PGRX_PG_CONFIG_PATH:-$PG_CONFIG}
BUILD=$ROOT/target/release

# What is done, and how long the whole run has taken so far.
export BEGUN=${BEGUN:-$EPOCHSECONDS}
say() { printf '==> %d:%02d %s\n' $(((EPOCHSECONDS - BEGUN) / 60)) $(((EPOCHSECONDS - BEGUN) % 60)) "$*" >&2; }

# The server refuses to run as root; Debian's package makes a user for it.
if [ "$(id -u)" = 0 ]; then SERVER_USER=postgres; else SERVER_USER=$(id -un); fi
as_server() { if [ "$(id -u)" = 0 ]; then setpriv --reuid "$SERVER_USER" --regid "$SERVER_USER" --init-groups env HOME=/tmp "$@"; else "$@"; fi; }

choose_private() {
  local here=$ROOT/target/private elsewhere
  mkdir -p "$ROOT/target"
  if [ -L "$here" ]; then readlink "$here"; return; fi
  if [ -d "$here" ]; then echo "$here"; return; fi
  if [ ${#here} -le 40 ] && { ! id "$SERVER_USER" >/dev/null 2>&1 || as_server test -x "$ROOT/target"; }; then
    mkdir "$here"
    chmod 755 "$here"
    echo "$here"
    return
  fi
  elsewhere=$(mktemp -d /tmp/transship-XXXXXX)
  chmod 755 "$elsewhere"
  ln -s "$elsewhere" "$here"
  echo "$elsewhere"
}

PRIVATE=$(choose_private)
export PGHOST=$PRIVATE/s PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
unset PGPASSWORD PGSERVICE PGOPTIONS
export TRANSSHIP_SOCKET=$PRIVATE/m/transshipd.sock
export TRANSSHIP_TEMPLATES=$ROOT/container_templates
export TRANSSHIP_RUNTIME=${RUNTIME:-auto}
# Each runtime keeps its own images and replicas.
export TRANSSHIP_STATE_DIR=$PRIVATE/state TRANSSHIP_RUN_DIR=$PRIVATE/r
# The private daemon, if there is one.
find_docker() { [ ! -S "$PRIVATE/docker/docker.sock" ] || export DOCKER_HOST=unix://$PRIVATE/docker/docker.sock; }
find_docker
# Brings up what the functions of a test or an example need, as RUNTIME says; that may be a daemon that was not there before.
bring_up() { "$ROOT/scripts/up.sh"; find_docker; }

# Builds everything in release mode, for the PostgreSQL of PG_CONFIG; the crate is built for 15 unless told otherwise. The simulation would
# build the others with seams that nothing else needs.
build_crates() {
  local major features=()
  major=$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
  [ "$major" = 15 ] || features=(--no-default-features --features "pg_ext/pg$major,udf_codec/default")
  cargo build --quiet --release --workspace --exclude simulation "${features[@]}"
}

# Has the manager build a UDF project; what the build said is shown only if it fails.
build_image() {
  local log
  log=$(mktemp)
  "$BUILD/transship" build "$1" > "$log" 2>&1 || { tail -n 30 "$log" >&2; exit 1; }
  rm "$log"
}

# Starts a manager beside the private one, with folders of its own in a folder with a short path, and with further options. From
# then on, `transship` asks this one: start_own_manager FOLDER [OPTIONS...]. Its process is $own_manager.
start_own_manager() {
  local place=$1
  shift
  # Replicas of the process runtime pass through it.
  chmod 711 "$place"
  export TRANSSHIP_SOCKET=$place/m.sock TRANSSHIP_STATE_DIR=$place/state TRANSSHIP_RUN_DIR=$place/r
  "$BUILD/transshipd" "$@" > "$place/log" 2>&1 < /dev/null &
  own_manager=$!
  for _ in $(seq 200); do
    ! "$BUILD/transship" ps > /dev/null 2>&1 || return 0
    kill -0 "$own_manager" 2> /dev/null || break
    sleep 0.1
  done
  tail -n 20 "$place/log" >&2
  return 1
}

# Whether the process in a pid file is alive and ours.
is_alive() { [ -s "$1" ] && kill -0 "$(head -n 1 "$1")" 2>/dev/null; }

# Ends the process in a pid file and waits for it.
end_process() {
  local file=$1 pid
  is_alive "$file" || { rm -f "$file"; return 0; }
  pid=$(head -n 1 "$file")
  kill "$pid"
  for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || { rm -f "$file"; return 0; }; sleep 0.1; done
  echo "process $pid does not end" >&2
  return 1
}
