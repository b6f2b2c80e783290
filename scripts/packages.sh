#!/usr/bin/env bash
# Installs what is missing: packages.sh NAME...  As root with apt, otherwise it prints the command.
source "$(dirname "$0")/environment.sh"

missing=()
for package in "$@"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "These packages are missing. Run:  sudo apt-get install --yes ${missing[*]}" >&2
  exit 1
fi
say "Installing ${missing[*]}"
mkdir -p "$ROOT/target"
# Debian's package would make and start a cluster of its own; it stays as it is if there is one already.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends "${missing[@]}"; } > "$ROOT/target/packages.log" 2>&1 || {
  tail -n 20 "$ROOT/target/packages.log" >&2
  exit 1
}
