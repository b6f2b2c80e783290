#!/usr/bin/env bash
# Versions of images: two that need conflicting versions of a package answer in one query; a new version is registered and
# taken back under load, and nothing fails in between.
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
export PGOPTIONS='-c client_min_messages=warning'
psql() { command psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@"; }
ask() { psql --command "$1"; }
expect() {
  local found
  found=$(ask "$1")
  [ "$found" = "$2" ] || { echo "$1 gives \"$found\", not \"$2\"" >&2; exit 1; }
}

# project NAME VERSION SIX_VERSION WORD FUNCTION: two functions that say what they are, and one of that name.
project() {
  mkdir -p "$folder/$1-$2"
  cat > "$folder/$1-$2/handler.py" <<PYTHON
import time

import six


def package_version() -> str:
    return six.__version__


def word(x: int) -> str:
    return "$4"


def slow_word(x: int) -> str:
    time.sleep(0.05)
    return "$4"


def $5() -> str:
    return "$4"
PYTHON
  {
    printf 'name = "%s"\nversion = "%s"\ntemplate = "python"\nrequirements = ["six==%s"]\nreplicas = 2\n' "$1" "$2" "$3"
    for name in package_version word slow_word "$5"; do printf '[[functions]]\nname = "%s"\nvolatility = "stable"\n' "$name"; done
  } > "$folder/$1-$2/transship.toml"
  build_image "$folder/$1-$2"
}

say "Building versions of two images"
project version_a 1.0 1.15.0 first only_in_first
project version_a 2.0 1.17.0 second only_in_second
project version_b 1.0 1.16.0 other only_in_other
psql --command 'CREATE EXTENSION IF NOT EXISTS transship' --command 'ALTER EXTENSION transship UPDATE' \
  --command 'DROP SCHEMA IF EXISTS a, b CASCADE' --command 'CREATE SCHEMA a' --command 'CREATE SCHEMA b'
register() { "$BUILD/transship" "$1" "$2" --schema "$3" --dsn "" > "$folder/said"; }
register register version_a:1.0 a
register register version_b:1.0 b

say "Joining functions that need conflicting versions of a package"
expect "SELECT x.v, y.v FROM (SELECT 1 AS k, a.package_version() AS v) x JOIN (SELECT 1 AS k, b.package_version() AS v) y USING (k)" '1.15.0|1.16.0'
expect "SELECT a.package_version(), b.package_version(), count(a.word(i)), count(b.word(i)) FROM generate_series(1, 5000) i" '1.15.0|1.16.0|5000|5000'

say "Registering a new version under load, and taking it back"
# Every answer must be one of the two words; a query that runs meanwhile gives one of them only.
load() {
  for _ in $(seq 1000); do
    [ ! -e "$folder/done" ] || break
    ask "SELECT string_agg(DISTINCT a.word(i), ',') FROM generate_series(1, 2000) i" || echo failed
  done > "$folder/load-$1"
}
# until_true COMMAND: runs it until it succeeds, for a minute at most.
until_true() {
  for _ in $(seq 600); do
    if "$@"; then return; fi
    sleep 0.1
  done
  echo "in vain: $*" >&2
  exit 1
}
is_running() { [ "$(ask "SELECT count(*) > 0 FROM transship.progress WHERE name = 'slow_word'")" = t ]; }
both_gave() { [ "$(grep -ls "$1" "$folder"/load-1 "$folder"/load-2 | wc -l)" = 2 ]; }
load 1 & loads=$!
load 2 & loads="$loads $!"
until_true both_gave first
ask "SELECT string_agg(DISTINCT a.slow_word(i), ',') FROM generate_series(1, 200) i" > "$folder/slow" & slow=$!
until_true is_running
register register version_a:2.0 a
grep -q 'DROP FUNCTION a.only_in_first()' "$folder/said"
expect "SELECT a.word(1), a.only_in_second(), a.package_version(), to_regprocedure('a.only_in_first()') IS NULL" 'second|second|1.17.0|t'
until_true both_gave second
register rollback version_a a
expect "SELECT a.word(1), a.only_in_first(), a.package_version(), to_regprocedure('a.only_in_second()') IS NULL" 'first|first|1.15.0|t'
register rollback version_a a
expect "SELECT a.word(1), a.only_in_second()" 'second|second'
sleep 0.5
touch "$folder/done"
register rollback version_a a
# shellcheck disable=SC2086
wait $slow $loads
[ "$(cat "$folder/slow")" = first ] || { echo "the running query gave \"$(cat "$folder/slow")\"" >&2; exit 1; }
[ "$(cat "$folder"/load-* | sort -u)" = $'first\nsecond' ] || { sort "$folder"/load-* | uniq -c >&2; exit 1; }
if "$BUILD/transship" rollback version_b --schema b --dsn "" 2> "$folder/said"; then echo "there was nothing to go back to" >&2; exit 1; fi
grep -q 'no earlier version of image "version_b" was registered in schema "b"' "$folder/said"
ask 'DROP SCHEMA a, b CASCADE'
say "Nothing failed"
