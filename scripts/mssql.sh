#!/usr/bin/env bash
# Packages the SQL Server extension: target/mssql/transship-mssql.zip, which CREATE EXTERNAL LANGUAGE takes.
# The shared object is linked for glibc 2.28, which the oldest supported servers have, by zig's linker, of what cargo compiled for this host.
# mssql.sh manager: transshipd and transship for the same hosts, as target/mssql/transshipd and transship.
source "$(dirname "$0")/environment.sh"
source "$ROOT/scripts/older_hosts.sh"
out=$ROOT/target/mssql
library=libtransship_mssql.so
mkdir -p "$out"

# Programs have no archive that could be linked again, so they are compiled for those hosts.
if [ "${1:-}" = manager ]; then
  "$ROOT/scripts/packages.sh" python3-venv binutils
  "$ROOT/scripts/python.sh" venv-zig
  say "Building transshipd and transship for glibc $glibc"
  PATH=$ROOT/target/venv-zig/bin:$PATH cargo zigbuild --quiet --release --package container_manager \
    --target x86_64-unknown-linux-gnu.$glibc --target-dir "$ROOT/target/zig"
  for file in transshipd transship; do
    strip --strip-unneeded -o "$out/$file" "$ROOT/target/zig/x86_64-unknown-linux-gnu/release/$file"
    check_needs "$out/$file"
    say "Wrote target/mssql/$file: glibc $newest, needs $needed"
  done
  exit
fi

build_crates
say "Linking the SQL Server extension for glibc $glibc"
# The host may unload the library while a thread of it is still ending.
link_for_older_hosts "$BUILD/libtransship_mssql.a" "$(sed 's/$/;/' mssql_ext/exports.txt | paste -sd ' ')" "$out/$library" -Wl,-z,nodelete
say "Wrote target/mssql/$library: glibc $newest, needs $needed"
say "Checking what it exports"
readelf --dynamic "$out/$library" | grep -q NODELETE || { echo "It may be unloaded." >&2; exit 1; }
exports_are "$out/$library" <(sort mssql_ext/exports.txt)
(cd "$out" && rm -f transship-mssql.zip && python3 -m zipfile -c transship-mssql.zip $library)
say "Wrote target/mssql/transship-mssql.zip"
