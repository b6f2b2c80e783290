#!/usr/bin/env bash
# Looks for wrong uses of memory, on a nightly toolchain with the component that is needed:
#   sanitizers.sh asan          both shared objects and the C interface of the core under AddressSanitizer
#   sanitizers.sh asan-postgres SQL tests in a backend that has the extension under AddressSanitizer: asan-postgres [TEST...]
#   sanitizers.sh miri          what of the codecs and of the core's parsers is pure, under Miri
# These are no part of tests/all.sh, since a nightly toolchain need not be there.
source "$(dirname "$0")/../scripts/environment.sh"

nightly() {
  rustup toolchain list 2> /dev/null | grep -q '^nightly' || {
    echo "sanitizers.sh: there is no nightly toolchain: rustup toolchain install nightly --component rust-src,miri" >&2
    exit 2
  }
  [ -z "${1:-}" ] || rustup +nightly component list --installed | grep -q "^$1" || {
    echo "sanitizers.sh: the nightly toolchain has no component $1: rustup +nightly component add $1" >&2
    exit 2
  }
}

host=$(rustc -vV | sed -n 's/^host: //p')
# Leaks are no concern here: what a backend keeps until its end is not freed. A failed allocation is an error, as in production.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}

# Cargo with AddressSanitizer. Naming the target keeps build scripts and macros free of it.
with_asan() {
  RUSTFLAGS="-Zsanitizer=address --cfg=asan ${RUSTFLAGS:-}" CARGO_TARGET_DIR=$ROOT/target/asan PGRX_PG_CONFIG_PATH=$PG_CONFIG \
    cargo +nightly "$1" --target "$host" "${@:2}"
}

case ${1:-} in
  asan)
    nightly
    say "Testing the SQL Server extension, the server core and the codecs under AddressSanitizer"
    with_asan test --package mssql_ext --package transship_core --package udf_codec --package fuzz_cases --lib --tests
    ;;
  asan-postgres)
    nightly
    "$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15
    with_asan build --package pg_ext
    runtime=$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.asan.so
    library=$ROOT/target/asan/$host/debug/libtransship.so
    installed=$("$PG_CONFIG" --pkglibdir)/transship.so
    # The cluster's programs have no runtime of the sanitizer, which has to be loaded first.
    [ -e "$runtime" ] || runtime=$(clang -print-file-name=libclang_rt.asan-x86_64.so)
    cp "$installed" "$installed.kept"
    trap 'mv "$installed.kept" "$installed"; "$ROOT/scripts/cluster.sh" stop' EXIT
    "$ROOT/scripts/cluster.sh" stop
    install -m 755 "$library" "$installed"
    LD_PRELOAD=$runtime tests/installcheck.sh "${@:2}"
    ;;
  miri)
    nightly miri
    say "Testing the pure parts under Miri"
    # What calls the kernel, and proptest's many cases, are left out.
    export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" PROPTEST_CASES=4 CARGO_TARGET_DIR=$ROOT/target/miri
    cargo +nightly miri test --package udf_types --package udf_codec --no-default-features --lib
    ;;
  *)
    echo "usage: $0 asan | asan-postgres [TEST...] | miri" >&2
    exit 2
    ;;
esac
