#!/usr/bin/env bash
# Packages the SQL Server extension: target/mssql/transship-mssql.zip, which CREATE EXTERNAL LANGUAGE takes.
# The shared object is linked for glibc 2.28, which the oldest supported servers have, by zig's linker.
# mssql.sh manager: transshipd and transship for the same hosts, as target/mssql/transshipd and transship.
source "$(dirname "$0")/environment.sh"
source "$ROOT/scripts/older_hosts.sh"
out=$ROOT/target/mssql
library=libtransship_mssql.so

"$ROOT/scripts/packages.sh" python3-venv binutils
"$ROOT/scripts/python.sh" venv-zig
mkdir -p "$out"

# build PACKAGE FILE...: in $out, checked for what they need: the C library, and none that is newer.
build() {
  local package=$1 file newest needed
  shift
  say "Building $* for glibc $glibc"
  PATH=$ROOT/target/venv-zig/bin:$PATH cargo zigbuild --quiet --release --package "$package" \
    --target x86_64-unknown-linux-gnu.$glibc --target-dir "$ROOT/target/zig"
  for file in "$@"; do
    strip --strip-unneeded -o "$out/$file" "$ROOT/target/zig/x86_64-unknown-linux-gnu/release/$file"
    check_needs "$out/$file"
    say "Wrote target/mssql/$file: glibc $newest, needs $needed"
  done
}

if [ "${1:-}" = manager ]; then
  build container_manager transshipd transship
  exit
fi
build mssql_ext $library
say "Checking what it exports"
readelf --dynamic "$out/$library" | grep -q NODELETE || { echo "It may be unloaded." >&2; exit 1; }
diff <(nm --dynamic --defined-only "$out/$library" | sed 's/.* //; s/@.*//' | sort) <(sort mssql_ext/exports.txt) >&2 || {
  echo "It exports something else than the API." >&2
  exit 1
}
(cd "$out" && rm -f transship-mssql.zip && python3 -m zipfile -c transship-mssql.zip $library)
say "Wrote target/mssql/transship-mssql.zip"
