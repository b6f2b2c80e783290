#!/usr/bin/env bash
# Packages the SQL Server extension: target/mssql/transship-mssql.zip, which CREATE EXTERNAL LANGUAGE takes.
# The shared object is linked for glibc 2.28, which the oldest supported servers have, by zig's linker.
source "$(dirname "$0")/environment.sh"
glibc=2.28
out=$ROOT/target/mssql
library=libtransship_mssql.so

"$ROOT/scripts/packages.sh" python3-venv binutils
"$ROOT/scripts/python.sh" venv-zig ziglang==0.15.* cargo-zigbuild==0.23.*
say "Building $library for glibc $glibc"
mkdir -p "$out"
PATH=$ROOT/target/venv-zig/bin:$PATH cargo zigbuild --quiet --release --package mssql_ext \
  --target x86_64-unknown-linux-gnu.$glibc --target-dir "$ROOT/target/zig"
strip --strip-unneeded -o "$out/$library" "$ROOT/target/zig/x86_64-unknown-linux-gnu/release/$library"

say "Checking what it needs and what it exports"
newest=$(objdump -T "$out/$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
[ "$(printf '%s\n%s\n' "$newest" $glibc | sort -V | tail -n 1)" = $glibc ] || { echo "It needs glibc $newest." >&2; exit 1; }
needed=$(readelf --dynamic "$out/$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
for name in $needed; do
  case $name in
    libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
    *) echo "It needs $name." >&2; exit 1 ;;
  esac
done
readelf --dynamic "$out/$library" | grep -q NODELETE || { echo "It may be unloaded." >&2; exit 1; }
diff <(nm --dynamic --defined-only "$out/$library" | sed 's/.* //; s/@.*//' | sort) <(sort mssql_ext/exports.txt) >&2 || {
  echo "It exports something else than the API." >&2
  exit 1
}
(cd "$out" && rm -f transship-mssql.zip && python3 -m zipfile -c transship-mssql.zip $library)
say "Wrote target/mssql/transship-mssql.zip: glibc $newest, needs $needed"
