#!/usr/bin/env bash
# Runs the fuzzers, or those named, each for FUZZ_SECONDS (600). They need a nightly toolchain and cargo-fuzz (cargo install
# cargo-fuzz). What is new goes to target/fuzz/corpus, what fails to target/fuzz/failures, and neither is committed by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
output=target/fuzz
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1}
names=("$@")
if [ ${#names[@]} = 0 ]; then mapfile -t names < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/[.]rs$//'); fi
[ -n "${FUZZ_BUILT:-}" ] || cargo +nightly fuzz build --target-dir "$output"
failed=()
for name in "${names[@]}"; do
  mkdir -p "$output/corpus/$name" "$output/failures/$name"
  echo "==> $name"
  # What a reply may make of itself is measured by the cases; these are bounds for the rest.
  "$output"/*/release/"$name" "$output/corpus/$name" "fuzz/corpus/$name" -max_total_time="${FUZZ_SECONDS:-600}" -timeout=20 \
    -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=8192 -print_final_stats=1 -artifact_prefix="$output/failures/$name/" \
    > "$output/$name.log" 2>&1 || failed+=("$name")
  grep -E '^stat::number_of_executed_units|^stat::average_exec|cov: ' "$output/$name.log" | tail -n 3 || true
done
for name in "${failed[@]}"; do
  tail -n 30 "$output/$name.log"
  echo "fuzzer \"$name\" found something: $output/failures/$name" >&2
done
[ ${#failed[@]} = 0 ]
