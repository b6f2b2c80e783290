#!/usr/bin/env bash
# Runs sql/ on other versions of PostgreSQL, each in a container of the Debian suite that has it: test_matrix.sh [VERSION...]
# The containers of functions run on the host, as RUNTIME says; expected/ differs where expected/VERSION/ has a file.
# LIFTED="ARGUMENTS": runs lifted_regression.sh ARGUMENTS there in place of sql/.
source "$(dirname "$0")/../scripts/environment.sh"
declare -A suites=([17]=trixie [18]=forky)
versions=("$@")
[ $# -gt 0 ] || versions=(17 18)

"$ROOT/scripts/docker.sh" start
find_docker
if [ -z "${LIFTED:-}" ]; then
  bring_up
  "$ROOT/scripts/python.sh" venv venv-arrow-udf
  build_image sql/functions
  # The server of which security_context asks what token it was sent, and the one whose results the cache test keeps.
  python=$ROOT/target/venv/bin/python socket=$PRIVATE/m/misbehaving.sock
  export MISBEHAVING_ENDPOINT=unix:$socket
  "$ROOT/tests/certificates.sh" "$ROOT/target/tls"
  mapfile -t ports < <("$python" - <<'PYTHON'
import socket
sockets = [socket.socket() for _ in range(3)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
for each in sockets:
    print(each.getsockname()[1])
PYTHON
)
  export ARROW_UDF_ENDPOINT=grpc://127.0.0.1:${ports[1]} ARROW_UDF_1_ENDPOINT=grpc://127.0.0.1:${ports[2]}
  rm -f "$socket" "$socket.silent"
  (umask 0 && exec "$python" sql/functions/misbehaving.py "$socket" "${ports[0]}" "$ROOT/target/tls") &
  servers=$!
  "$ROOT/target/venv-arrow-udf/bin/python" sql/functions/arrow_udf_server.py "${ports[@]:1}" > "$ROOT/target/arrow_udf.log" 2>&1 &
  servers="$servers $!"
  trap 'kill $servers' EXIT
  for port in "${ports[@]:1}"; do
    for _ in $(seq 600); do
      [ -S "$socket" ] && (: > "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break
      sleep 0.1
    done
  done
fi
"$ROOT/scripts/packages.sh" mmdebstrap ca-certificates
sysroot=$(rustc --print sysroot) cargo_home=${CARGO_HOME:-$HOME/.cargo}

for version in "${versions[@]}"; do
  image=transship-matrix:$version
  if ! docker image inspect "$image" > /dev/null 2>&1; then
    say "Making an image with PostgreSQL $version of Debian ${suites[$version]}"
    packages=ca-certificates,postgresql-$version,postgresql-server-dev-$version,postgresql-$version-pgvector,clang,libclang-dev,gcc,libc6-dev,make,procps,dpkg-dev,bzip2,xz-utils,python3
    # A mirror may lag behind the validity of a suite that is still moving; its signature is checked all the same.
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include="$packages" \
      --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' "${suites[$version]}" - 2> "$ROOT/target/mmdebstrap.log" \
      | docker import - "$image" > /dev/null || { docker image rm "$image" > /dev/null; tail -n 20 "$ROOT/target/mmdebstrap.log" >&2; exit 1; }
  fi
  if [ -n "${LIFTED:-}" ]; then "$ROOT/tests/core_source.sh" "$version" "${suites[$version]}"; fi
  say "Testing PostgreSQL $version"
  mkdir -p "$ROOT/target/matrix/$version"
  # The cache test stops a process of the manager's.
  docker run --rm --pid host --network host --workdir "$ROOT" \
    --volume "$ROOT:$ROOT" --volume "$PRIVATE:$PRIVATE" --volume "$sysroot:$sysroot:ro" --volume "$cargo_home:$cargo_home" \
    --env PATH="$sysroot/bin:/usr/bin:/bin:/usr/sbin:/sbin" --env CARGO_HOME="$cargo_home" --env HOME=/root \
    --env PRIVATE="$PRIVATE" --env SERVER_UID="$(id -u "$SERVER_USER")" --env TRANSSHIP_SOCKET --env MISBEHAVING_ENDPOINT \
    --env ARROW_UDF_ENDPOINT --env ARROW_UDF_1_ENDPOINT --env LIFTED="${LIFTED:-}" \
    "$image" bash tests/test_matrix_inside.sh "$version"
done
