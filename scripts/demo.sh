#!/usr/bin/env bash
# The main job: plain SQL over 336,776 real flights, with a scikit-learn model in a container.
# RUNTIME=docker insists on Docker; auto takes it where a daemon answers, and child processes otherwise.
source "$(dirname "$0")/environment.sh"
here=examples/flights
python=$ROOT/target/venv/bin/python

"$ROOT/scripts/up.sh"
source "$ROOT/scripts/environment.sh"
"$ROOT/scripts/python.sh"

if [ ! -e $here/model.pkl ] || [ $here/train.py -nt $here/model.pkl ] || [ $here/features.py -nt $here/model.pkl ]; then
  say "Training a random forest of 10 trees on the flights"
  "$python" $here/train.py
fi
say "Packaging $here as image flights:1.0"
build_image $here

say "Loading the flights and creating function arrival_delay"
psql --quiet --set=ON_ERROR_STOP=1 --command='SET client_min_messages = warning' --command='CREATE EXTENSION IF NOT EXISTS transship' --command='ALTER EXTENSION transship UPDATE'
"$python" $here/export.py | PGOPTIONS='-c client_min_messages=warning' psql --quiet --set=ON_ERROR_STOP=1 --file=$here/flights.sql

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
"$BUILD/transship" ps
