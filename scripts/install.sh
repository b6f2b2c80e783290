#!/usr/bin/env bash
# Builds everything in release mode and installs the extension into PostgreSQL.
source "$(dirname "$0")/environment.sh"

say "Building the extension and the manager"
build_crates
"$ROOT/scripts/core.sh"
# Another build of the library, if TRANSSHIP_LIBRARY names one.
built=${TRANSSHIP_LIBRARY:-$BUILD/libtransship.so}
library=$("$PG_CONFIG" --pkglibdir) extension=$("$PG_CONFIG" --sharedir)/extension
# A library that a server has loaded must not be written over; install puts a new file in its place.
files_differ() { ! cmp -s "$1" "$2"; }
changed=
files_differ "$built" "$library/transship.so" && changed=yes
for file in pg_ext/transship.control pg_ext/transship--*.sql; do
  files_differ "$file" "$extension/$(basename "$file")" && changed=yes
done
if [ -n "$changed" ]; then
  say "Installing the extension into PostgreSQL $("$PG_CONFIG" --version | cut -d' ' -f2)"
  if [ ! -w "$library" ]; then
    echo "Run:  sudo install -m 755 $BUILD/libtransship.so $library/transship.so && sudo install -m 644 $ROOT/pg_ext/transship.control $ROOT/pg_ext/transship--*.sql $extension/" >&2
    exit 1
  fi
  install -m 755 "$built" "$library/transship.so"
  install -m 644 pg_ext/transship.control pg_ext/transship--*.sql "$extension/"
fi
