#!/usr/bin/env bash
# Docker for builds and replicas: docker.sh start | compilers | gateway | stop.
# start uses the daemon that answers; where none does, as root on Debian, it installs Docker and starts a private daemon
# under target/private. It also makes the base image where no registry gives it. compilers makes the official images of
# compilers that templates build in, where no registry gives them, from the compilers of this machine; gateway that of nginx,
# with Debian's version.
source "$(dirname "$0")/environment.sh"
place=$PRIVATE/docker
base=debian:bookworm-slim

has_image() { docker image inspect "$1" > /dev/null 2>&1 || timeout 60 docker pull --quiet "$1" > /dev/null 2>&1; }

make_base_image() {
  has_image "$base" && return
  "$ROOT/scripts/packages.sh" mmdebstrap ca-certificates
  say "Making base image $base with mmdebstrap"
  # The host's certificates go in, so that package clients inside builds trust what the host trusts.
  mmdebstrap --quiet --variant=minbase --include=ca-certificates \
    --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share' \
    --customize-hook='chroot "$1" update-ca-certificates > /dev/null' \
    --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/*' \
    bookworm - 2> "$ROOT/target/mmdebstrap.log" | docker import --change 'CMD ["bash"]' - "$base" > /dev/null || {
    # What came before the failure was imported all the same.
    docker image rm "$base" > /dev/null
    tail -n 20 "$ROOT/target/mmdebstrap.log" >&2
    exit 1
  }
}

# Files of this machine, absolute paths, over Debian packages: make_compiler_image NAME "PACKAGES" "COMMAND" PATH...
make_compiler_image() {
  local name=$1 packages=$2 command=$3 folder
  shift 3
  has_image "$name" && return
  say "Making image $name from this machine's compiler"
  folder=$(mktemp -d)
  printf 'FROM %s\nRUN apt-get update && apt-get install -y --no-install-recommends ca-certificates %s && rm -rf /var/lib/apt/lists/*\nCOPY tree /\nRUN %s\n' \
    "$base" "$packages" "$command" > "$folder/Dockerfile"
  tar -c -C "$folder" Dockerfile -C / --transform 's,^\([^D]\),tree/\1,SH' --exclude='*/share/doc' --exclude='*/rustlib/src' "${@#/}" \
    | docker build --quiet --tag "$name" - > "$ROOT/target/compiler.log" 2>&1 || { tail -n 20 "$ROOT/target/compiler.log" >&2; exit 1; }
  rm -r "$folder"
}

make_compiler_images() {
  local go node npm rust headers
  go=$(go env GOROOT) node=$(command -v node) npm=$(readlink -f "$(npm root -g)")/npm rust=$(rustc --print sysroot)
  # Node's headers lie beside its program, as in the official image.
  headers=$(dirname "$(dirname "$(readlink -f "$node")")")/include/node
  make_compiler_image golang:1.26-bookworm "gcc libc6-dev git" "ln -s $go/bin/go /usr/local/bin/go" "$go"
  make_compiler_image node:20-bookworm-slim "" \
    "ln -sf $node /usr/local/bin/node && ln -s $npm/bin/npm-cli.js /usr/local/bin/npm" "$node" "$npm" "$headers"
  make_compiler_image rust:1.95-slim-bookworm "gcc libc6-dev" "for tool in $rust/bin/*; do ln -s \$tool /usr/local/bin; done" "$rust"
}

# As container_manager/src/deploy names it.
make_gateway_image() {
  local name=nginx:1.28
  has_image "$name" && return
  say "Making image $name from Debian's package"
  printf 'FROM %s\nRUN apt-get update && apt-get install -y --no-install-recommends nginx && rm -rf /var/lib/apt/lists/*\n' "$base" \
    | docker build --quiet --tag "$name" - > "$ROOT/target/gateway.log" 2>&1 || { tail -n 20 "$ROOT/target/gateway.log" >&2; exit 1; }
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
  compilers) make_compiler_images ;;
  gateway) make_gateway_image ;;
  stop)
    if is_alive "$place/pid"; then
      say "Stopping the private Docker daemon"
      end_process "$place/pid"
      rm -f "$place/docker.sock"
    fi
    ;;
  *) echo "usage: $0 start | compilers | gateway | stop" >&2; exit 2 ;;
esac
