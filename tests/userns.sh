#!/usr/bin/env bash
# The manager's tests of containers on a Docker daemon with user namespaces (userns-remap). As root on Debian, it starts one of
# its own, with a network of its own, beside the one that answers, and takes everything away again: no other daemon is touched.
source "$(dirname "$0")/../scripts/environment.sh"
[ "$(id -u)" = 0 ] || { echo "Only root can start a Docker daemon with user namespaces." >&2; exit 1; }

"$ROOT/scripts/packages.sh" docker.io iptables iproute2
"$ROOT/scripts/docker.sh" start
source "$ROOT/scripts/environment.sh"
place=$(mktemp -d /tmp/transship-userns-XXXXXX)
chmod 711 "$place"
# The numbers of users that containers have here, and the daemon's own link to the world.
range=daemon:3000000:65536 link=ts-userns subnet=198.18.213.0/30 outside=198.18.213.1 inside=198.18.213.2
daemon=

world() {
  iptables --wait -t nat "$1" POSTROUTING -s "$subnet" ! -o "$link" -j MASQUERADE
  iptables --wait "$1" FORWARD -i "$link" -j ACCEPT
  iptables --wait "$1" FORWARD -o "$link" -j ACCEPT
}

clean_up() {
  set +e
  if [ -n "$daemon" ]; then
    kill "$daemon"
    wait "$daemon"
  fi
  # With the daemon's network, its end of the link goes, and so does this one.
  ip link delete "$link" 2> /dev/null
  world -D 2> /dev/null
  for file in /etc/subuid /etc/subgid; do sed -i "/^$range\$/d" "$file"; done
  grep -o " $place/[^ ]*" /proc/self/mounts | sort -r | xargs --no-run-if-empty umount --lazy
  rm -rf "$place"
}
trap clean_up EXIT
for file in /etc/subuid /etc/subgid; do grep -qxs "$range" "$file" || echo "$range" >> "$file"; done

say "Starting a Docker daemon with user namespaces"
mkfifo "$place/start"
# It waits for its network, and shares mounts with the manager, which makes the replicas' folders.
unshare --net bash -c 'read -r _ < "$0/start" && exec dockerd --userns-remap=daemon --host "unix://$0/docker.sock" \
  --data-root "$0/data" --exec-root "$0/exec" --pidfile "$0/dockerd.pid"' "$place" > "$place/log" 2>&1 < /dev/null &
daemon=$!
until [ "$(readlink "/proc/$daemon/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do is_running=$(kill -0 "$daemon") && sleep 0.1; done
ip link add "$link" type veth peer name eth0 netns "$daemon"
ip address add "$outside/30" dev "$link"
ip link set "$link" up
within() { nsenter --net --target "$daemon" "$@"; }
within ip link set lo up
within ip address add "$inside/30" dev eth0
within ip link set eth0 up
within ip route add default via "$outside"
world -I
echo > "$place/start"
base=$DOCKER_HOST
export DOCKER_HOST=unix://$place/docker.sock
for _ in $(seq 300); do
  docker version > /dev/null 2>&1 && break
  kill -0 "$daemon" 2> /dev/null || { tail -n 20 "$place/log" >&2; exit 1; }
  sleep 0.1
done
docker info --format '{{json .SecurityOptions}}' | grep -q name=userns
DOCKER_HOST=$base docker save debian:bookworm-slim | docker load > /dev/null

say "Testing the manager on it"
# What runs there has its own numbers, so the tests expect them. With the workspace's features, nothing is built twice.
TRANSSHIP_TEST_ENGINES=docker TRANSSHIP_TEST_USERNS=1 cargo test --quiet --workspace --test hostile --test life_of_a_manager "$@"
say "All tests passed with user namespaces"
