#!/usr/bin/env bash
# Looks for wrong uses of memory, on a nightly toolchain:
#   sanitizers.sh asan [PART...]  AddressSanitizer. Parts: core (Rust tests of the server core, its C interface and the codecs),
#                                 postgres (SQL tests, with the extension instrumented), mssql (jobs in the test host, with the
#                                 extension and the host instrumented); all of them if none is named
#   sanitizers.sh miri            Miri, for what is pure in the type table and the codecs
# They are no part of tests/all.sh, since a nightly toolchain need not be there.
source "$(dirname "$0")/../scripts/environment.sh"

need_nightly() {
  rustup toolchain list 2> /dev/null | grep -q '^nightly' || {
    echo "sanitizers.sh: there is no nightly toolchain; rustup toolchain install nightly adds it" >&2
    exit 2
  }
  [ -z "${1:-}" ] || rustup +nightly component list --installed | grep -q "^$1" || {
    echo "sanitizers.sh: the nightly toolchain has no component $1; rustup +nightly component add $1 rust-src adds it" >&2
    exit 2
  }
}

host=$(rustc -vV | sed -n 's/^host: //p')
instrumented=$ROOT/target/asan/$host/debug
# Backends do not free what they keep until they end. A failed allocation is an error, as in production.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}

# Cargo with AddressSanitizer. A target that is named keeps build scripts and macros free of it.
with_asan() {
  RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS:-}" CARGO_TARGET_DIR=$ROOT/target/asan cargo +nightly "$1" --target "$host" "${@:2}"
}

test_core() {
  say "Testing the server core and the codecs under AddressSanitizer"
  with_asan test --package transship_core --package udf_codec --package fuzz_cases
}

test_postgres() {
  "$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 clang libclang-dev libclang-rt-14-dev
  with_asan build --package pg_ext
  "$ROOT/scripts/cluster.sh" stop
  # PostgreSQL's own programs are not instrumented, so the sanitizer's library is loaded before them.
  trap '"$ROOT/scripts/cluster.sh" stop; "$ROOT/scripts/install.sh"' EXIT
  say "Running SQL tests with the extension under AddressSanitizer"
  TRANSSHIP_LIBRARY=$instrumented/libtransship.so TRANSSHIP_PRELOAD=$(clang -print-file-name=libclang_rt.asan-x86_64.so) \
    RUNTIME=process tests/installcheck.sh types nulls results batching aggregates constants on_error settings
}

test_mssql() {
  with_asan build --package mssql_ext --package exthost
  say "Testing the SQL Server extension under AddressSanitizer"
  EXTHOST=$instrumented/exthost EXTHOST_EXTENSION=$instrumented/libtransship_mssql.so RUNTIME=process \
    tests/mssqlcheck.sh mssql_ext/tests -k "not valgrind"
}

case ${1:-} in
  asan)
    need_nightly
    parts=("${@:2}")
    [ ${#parts[@]} -gt 0 ] || parts=(core postgres mssql)
    for part in "${parts[@]}"; do
      case $part in
        core | postgres | mssql) "test_$part" ;;
        *) echo "sanitizers.sh: there is no part $part" >&2; exit 2 ;;
      esac
    done
    ;;
  miri)
    need_nightly miri
    say "Testing the type table and the codecs under Miri"
    # What reads the clock or files is allowed to; few random cases, since Miri takes a hundred times as long.
    MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" PROPTEST_CASES=${PROPTEST_CASES:-4} CARGO_TARGET_DIR=$ROOT/target/miri \
      cargo +nightly miri test --package udf_types --package udf_codec --no-default-features --lib
    ;;
  *)
    echo "usage: $0 asan [core|postgres|mssql]... | miri" >&2
    exit 2
    ;;
esac
