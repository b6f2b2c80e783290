#!/usr/bin/env bash
# Docker for builds and replicas: docker.sh start | stop.
# start uses the daemon that answers; where none does, as root on Debian, it installs Docker and starts a private daemon
# under target/private. It also makes the base image where no registry gives it.
source "$(dirname "$0")/environment.sh"
place=$PRIVATE/docker
base=debian:bookworm-slim

make_base_image() {
  docker image inspect "$base" > /dev/null 2>&1 && return
  if timeout 60 docker pull --quiet "$base" > /dev/null 2>&1; then return; fi
  "$ROOT/scripts/packages.sh" mmdebstrap ca-certificates
  say "Making base image $base with mmdebstrap"
  # The host's certificates go in, so that package clients inside builds trust what the host trusts.
  mmdebstrap --quiet --variant=minbase --include=ca-certificates \
    --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/*' \
    bookworm - 2> "$ROOT/target/mmdebstrap.log" | docker import --change 'CMD ["bash"]' - "$base" > /dev/null || {
    # What came before the failure was imported all the same.
    docker image rm "$base" > /dev/null
    tail -n 20 "$ROOT/target/mmdebstrap.log" >&2
    exit 1
  }
}

case ${1:-} in
  start)
    if ! docker version > /dev/null 2>&1; then
      unset DOCKER_HOST
      if [ "$(id -u)" != 0 ]; then
        echo "No Docker daemon answers. Run:  sudo systemctl start docker" >&2
        exit 1
      fi
      "$ROOT/scripts/packages.sh" docker.io iptables
      say "Starting a private Docker daemon"
      mkdir -p "$place"
      export DOCKER_HOST=unix://$place/docker.sock
      setsid dockerd --host "$DOCKER_HOST" --data-root "$place/data" --exec-root "$place/exec" --pidfile "$place/dockerd.pid" \
        >> "$place/log" 2>&1 < /dev/null &
      echo "$!" > "$place/pid"
      for _ in $(seq 300); do
        docker version > /dev/null 2>&1 && break
        is_alive "$place/pid" || { tail -n 20 "$place/log" >&2; exit 1; }
        sleep 0.1
      done
    fi
    make_base_image
    ;;
  stop)
    if is_alive "$place/pid"; then
      say "Stopping the private Docker daemon"
      end_process "$place/pid"
      rm -f "$place/docker.sock"
    fi
    ;;
  *) echo "usage: $0 start | stop" >&2; exit 2 ;;
esac
