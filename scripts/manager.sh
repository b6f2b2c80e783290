#!/usr/bin/env bash
# The private container manager: manager.sh start | stop | env (what `transship` needs to know of it).  RUNTIME is auto, docker, podman or process.
source "$(dirname "$0")/environment.sh"
mkdir -p "$PRIVATE/m"
pid=$PRIVATE/m/pid

case ${1:-} in
  start)
    # A manager of another runtime, or of an older build, is started again.
    if is_alive "$pid" && { [ "$(sed -n 2p "$pid")" != "$TRANSSHIP_RUNTIME ${DOCKER_HOST:-}" ] || [ "$BUILD/transshipd" -nt "$pid" ]; }; then
      "$0" stop
    fi
    is_alive "$pid" && exit 0
    say "Starting transshipd with runtime $TRANSSHIP_RUNTIME"
    setsid "$BUILD/transshipd" --allow-user "$SERVER_USER" >> "$PRIVATE/m/log" 2>&1 < /dev/null &
    printf '%s\n%s\n' "$!" "$TRANSSHIP_RUNTIME ${DOCKER_HOST:-}" > "$pid"
    for _ in $(seq 200); do
      "$BUILD/transship" ps > /dev/null 2>&1 && exit 0
      is_alive "$pid" || break
      sleep 0.1
    done
    tail -n 20 "$PRIVATE/m/log" >&2
    exit 1
    ;;
  stop)
    if is_alive "$pid"; then
      say "Stopping transshipd"
      end_process "$pid"
    fi
    ;;
  env)
    for name in TRANSSHIP_SOCKET TRANSSHIP_TEMPLATES; do
      [ -z "${!name:-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    ;;
  *) echo "usage: $0 start | stop | env" >&2; exit 2 ;;
esac
