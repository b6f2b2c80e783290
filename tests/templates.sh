#!/usr/bin/env bash
# Starts a project from each template, builds it, registers its functions and calls them from SQL: the same queries must give
# the same answers in every language. templates.sh [TEMPLATE...]
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
templates=("$@")
[ $# -gt 0 ] || templates=($(cd container_templates && ls -d -- */template.toml | cut -d/ -f1))
[ "$TRANSSHIP_RUNTIME" != docker ] || "$ROOT/scripts/docker.sh" compilers
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
export PGOPTIONS='-c client_min_messages=warning'
psql() { command psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@"; }
psql --command 'CREATE EXTENSION IF NOT EXISTS transship' --command 'ALTER EXTENSION transship UPDATE'

queries() {
  cat <<SQL
SET search_path = $1;
SELECT add_one(41), add_one(NULL::bigint);
SELECT sum(add_one(x)) FROM generate_series(1, 5000) AS x;
SELECT round(sum(hypotenuse(x, x + 1))::numeric, 6) FROM generate_series(1, 5000) AS x;
SELECT x, words FROM (VALUES (1, 'two words'), (2, ''), (3, ' one ')) AS v (x, t), words(t) ORDER BY x, words;
SELECT x % 3, longest(repeat('x', x::int % 100)) FROM generate_series(1, 5000) AS x GROUP BY 1 ORDER BY 1;
SELECT longest(NULL::text) FROM generate_series(1, 10);
SQL
}

failed=
for template in "${templates[@]}"; do
  say "Starting a project from template $template"
  (cd "$folder" && "$BUILD/transship" new --template "$template" "started_$template" > /dev/null)
  build_image "$folder/started_$template"
  psql --command "DROP SCHEMA IF EXISTS started_$template CASCADE" --command "CREATE SCHEMA started_$template"
  "$BUILD/transship" ddl "started_$template:1.0" --schema "started_$template" | psql --file=-
  queries "started_$template" | psql --file=- > "$folder/$template.out"
  if ! diff "$ROOT/container_templates/expected.out" "$folder/$template.out" >&2; then
    echo "template $template answers otherwise" >&2
    failed=yes
  fi
done
[ -z "$failed" ]
