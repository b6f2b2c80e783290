#!/usr/bin/env bash
# Packages the SQL Server extension: target/mssql/transship-mssql.zip, which CREATE EXTERNAL LANGUAGE takes.
# The shared object is linked for glibc 2.28, which the oldest supported servers have, by zig's linker.
# mssql.sh manager: transshipd and transship for the same hosts, as target/mssql/transshipd and transship.
source "$(dirname "$0")/environment.sh"
glibc=2.28
out=$ROOT/target/mssql
library=libtransship_mssql.so

"$ROOT/scripts/packages.sh" python3-venv binutils
"$ROOT/scripts/python.sh" venv-zig
mkdir -p "$out"

# build PACKAGE FILE...: in $out, checked for what they need: the C library, and none that is newer.
build() {
  local package=$1 file newest needed name
  shift
  say "Building $* for glibc $glibc"
  PATH=$ROOT/target/venv-zig/bin:$PATH cargo zigbuild --quiet --release --package "$package" \
    --target x86_64-unknown-linux-gnu.$glibc --target-dir "$ROOT/target/zig"
  for file in "$@"; do
    strip --strip-unneeded -o "$out/$file" "$ROOT/target/zig/x86_64-unknown-linux-gnu/release/$file"
    newest=$(objdump -T "$out/$file" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    [ "$(printf '%s\n%s\n' "$newest" $glibc | sort -V | tail -n 1)" = $glibc ] || { echo "$file needs glibc $newest." >&2; exit 1; }
    needed=$(readelf --dynamic "$out/$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
    for name in $needed; do
      case $name in
        libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
        *) echo "$file needs $name." >&2; exit 1 ;;
      esac
    done
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
