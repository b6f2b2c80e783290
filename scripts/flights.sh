#!/usr/bin/env bash
# What the demo and the tests of both engines need: the trained model as image flights:1.0, and the flights as
# target/flights.csv and as PostgreSQL's table flights. The cluster and the manager run already.
source "$(dirname "$0")/environment.sh"
here=examples/flights
python=$ROOT/target/venv/bin/python

if [ ! -e $here/model.pkl ] || [ $here/train.py -nt $here/model.pkl ] || [ $here/features.py -nt $here/model.pkl ]; then
  say "Training a random forest of 10 trees on the flights"
  "$python" $here/train.py
fi
say "Packaging $here as image flights:1.0"
build_image $here

say "Loading the flights and creating function arrival_delay"
psql --quiet --set=ON_ERROR_STOP=1 --command='SET client_min_messages = warning' --command='CREATE EXTENSION IF NOT EXISTS transship' --command='ALTER EXTENSION transship UPDATE'
"$python" $here/export.py > target/flights.csv
PGOPTIONS='-c client_min_messages=warning' psql --quiet --set=ON_ERROR_STOP=1 --file=$here/flights.sql < target/flights.csv
