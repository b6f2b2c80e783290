#!/usr/bin/env bash
# Checks the form of pg_ext for versions of PostgreSQL that need not be installed: pgrx_bindings.sh [VERSION...]
# pgrx-pg-sys carries the bindings that docs.rs shows, and takes them in place of generated ones where that is asked for.
# Cargo calls this script for rustc as well, since the crate that is to take them must be told so, and no other.
if [ -n "${TRANSSHIP_BINDINGS:-}" ]; then
  case " $* " in *" --crate-name pgrx_pg_sys "*) set -- "$@" --cfg docsrs ;; esac
  exec "$@"
fi
source "$(dirname "$0")/../scripts/environment.sh"
versions=("$@")
[ $# -gt 0 ] || versions=(17 18)

export DOCS_RS=1 TRANSSHIP_BINDINGS=1 RUSTC_WRAPPER=$ROOT/tests/pgrx_bindings.sh
for version in "${versions[@]}"; do
  say "Checking the extension's form for PostgreSQL $version"
  # All members, so that what they depend on is what clippy has for PostgreSQL 15, and is not built again.
  cargo clippy --quiet --workspace --all-targets --no-default-features --features "pg_ext/pg$version,udf_codec/default" -- --deny warnings
done
