#!/usr/bin/env bash
# Runs sql/ and specs/ against expected/ on the private cluster and manager: installcheck.sh [TEST...]
# RUNTIME says on which runtime the functions run.
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
"$ROOT/scripts/python.sh" venv venv-arrow-udf venv-dialects venv-old-mlflow
say "Building the image that the tests call"
build_image sql/functions

socket=$PRIVATE/m/misbehaving.sock
rm -f "$socket" "$socket.silent"
python=$ROOT/target/venv/bin/python
# All at once, so that none is given twice.
mapfile -t ports < <("$python" - <<'PYTHON'
import socket
sockets = [socket.socket() for _ in range(12)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
for each in sockets:
    print(each.getsockname()[1])
PYTHON
)
tls_port=${ports[0]} port=${ports[1]} old_port=${ports[2]} dialects=("${ports[@]:3}") tls=$ROOT/target/tls
"$ROOT/tests/certificates.sh" "$tls"
(umask 0 && exec "$python" sql/functions/misbehaving.py "$socket" "$tls_port" "$tls") &
servers=$!
"$ROOT/target/venv-arrow-udf/bin/python" sql/functions/arrow_udf_server.py "$port" "$old_port" > "$ROOT/target/arrow_udf.log" 2>&1 &
servers="$servers $!"
model=$(mktemp -d)
"$ROOT/target/venv-dialects/bin/python" sql/functions/dialect_servers.py "$model" "${dialects[@]:0:8}" > "$ROOT/target/dialects.log" 2>&1 &
servers="$servers $!"
"$ROOT/target/venv-old-mlflow/bin/python" sql/functions/old_mlflow_server.py "$model" "${dialects[8]}" > "$ROOT/target/old_mlflow.log" 2>&1 &
servers="$servers $!"
trap 'kill $servers; rm -rf "$model"' EXIT
export DATABEND_ENDPOINT=grpc://127.0.0.1:${dialects[0]} SINGLESTORE_ENDPOINT=http://127.0.0.1:${dialects[1]}
export BIGQUERY_ENDPOINT=http://127.0.0.1:${dialects[2]} MLFLOW_ENDPOINT=http://127.0.0.1:${dialects[3]}
export AZURE_ML_ENDPOINT=http://127.0.0.1:${dialects[4]} LAMBDA_ENDPOINT=http://127.0.0.1:${dialects[5]}
export RECORDED_ENDPOINT=http://127.0.0.1:${dialects[6]} PUT_GET_ENDPOINT=grpc://127.0.0.1:${dialects[7]}
export OLD_MLFLOW_ENDPOINT=http://127.0.0.1:${dialects[8]}
for place in "$port" "$old_port" "${dialects[@]}"; do
  for _ in $(seq 600); do
    [ -S "$socket" ] && (: > "/dev/tcp/127.0.0.1/$place") 2> /dev/null && break
    sleep 0.1
  done
done
export TLS_ENDPOINT=grpcs://localhost:$tls_port TLS_FOLDER=$tls MISBEHAVING_ENDPOINT=unix:$socket ARROW_UDF_ENDPOINT=grpc://127.0.0.1:$port
export ARROW_UDF_1_ENDPOINT=grpc://127.0.0.1:$old_port

tests=("$@")
[ $# -gt 0 ] || tests=(language batching surgery guarded nulls types built_types results map map_chains aggregates errors error_context cancel transports arrow_udf dialects tls prepared parallel statements dba settings update security_context allowed_images aggregate_states null_rows encodings row_types statistics reply_size many_calls constants on_error acting_constraints owners cache fusion tables tables_on_disk tables_followed tables_of_functions tables_of_files tables_of_dictionaries)
export PG_REGRESS_DIFF_OPTS=-u
# A statement that hangs is a failure, not a wait.
export PGOPTIONS="-c statement_timeout=120s"
say "Running sql/ against expected/ with runtime $TRANSSHIP_RUNTIME"
regress=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test
mkdir -p "$ROOT/target/regress"
"$regress/regress/pg_regress" --inputdir=. --outputdir=target/regress --bindir="$PG_BIN" \
  --dbname=transship_regression --load-extension=transship setup "${tests[@]}" || {
  cat target/regress/regression.diffs >&2
  exit 1
}
[ $# -eq 0 ] || exit 0
say "Running specs/, where two sessions meet"
mkdir -p "$ROOT/target/isolation"
"$regress/isolation/pg_isolation_regress" --inputdir=. --outputdir=target/isolation --bindir="$PG_BIN" \
  --dbname=transship_regression --use-existing concurrent_update replace_function replace_cached lateral_set shared_table followed_table || {
  cat target/isolation/regression.diffs >&2
  exit 1
}
"$ROOT/tests/dump_restore.sh"
