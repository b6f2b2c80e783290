#!/usr/bin/env bash
# The main job: plain SQL over 336,776 real flights, with a scikit-learn model in a container.
# RUNTIME=docker insists on Docker; auto takes it where a daemon answers, and child processes otherwise.
source "$(dirname "$0")/environment.sh"
here=examples/flights
python=$ROOT/target/venv/bin/python

bring_up
"$ROOT/scripts/python.sh"

"$ROOT/scripts/flights.sh"

say "Asking: how well does the model predict arrival delays, by carrier (minutes)?"
cat $here/question.sql >&2
psql --set=ON_ERROR_STOP=1 --file=$here/question.sql
say "How it ran"
plan=$(psql --no-align --tuples-only --set=ON_ERROR_STOP=1 --command="EXPLAIN (ANALYZE, COSTS OFF) $(cat $here/question.sql)")
echo "$plan"
awk '/Calls:/ { calls = $2 } /Execution Time:/ { printf "%d rows in %.3f s: %d rows per second\n", calls, $3 / 1000, calls / $3 * 1000 }' <<< "$plan"

say "Comparing every prediction with plain Python"
psql --quiet --set=ON_ERROR_STOP=1 --command="COPY (SELECT id, arrival_delay(distance, dep_delay, carrier, month, hour) FROM flights WHERE dep_delay IS NOT NULL ORDER BY id) TO STDOUT WITH (FORMAT csv)" \
  | "$python" $here/compare.py
say "Training one model per carrier in the container, and applying it to July (error in minutes)"
psql --quiet --set=ON_ERROR_STOP=1 --file=$here/models.sql

say "Calling the same container from SQL Server's side, in the test host (SQL Server itself is not needed)"
sed -n '/^EXEC/,$p' $here/mssql.sql >&2
predictions=$(mktemp)
trap 'rm -f "$predictions"' EXIT
TRANSSHIP_ALLOWED='flights:*' "$BUILD/exthost" --extension "$BUILD/libtransship_mssql.so" $here/mssql.sql > "$predictions"
head -n 6 "$predictions"
say "Comparing every prediction of SQL Server's side with plain Python"
tail -n +2 "$predictions" | grep -v ',$' | "$python" $here/compare.py
say "One image, two engines, the same containers"
"$BUILD/transship" ps
