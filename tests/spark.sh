#!/usr/bin/env bash
# Calls a container's functions from Spark, through the module that `transship ddl --engine spark` writes.
source "$(dirname "$0")/../scripts/environment.sh"

bring_up
"$ROOT/scripts/packages.sh" openjdk-17-jre-headless
"$ROOT/scripts/python.sh" venv venv-spark
folder=$(mktemp -d)
mkdir "$folder/function"
cp sql/functions/spark.py "$folder/function/handler.py"
cat > "$folder/transship.toml" <<'TOML'
name = "spark_functions"
version = "1.0"
template = "python"
functions = [
  { name = "add", arguments = ["int8", "int8"], returns = "int8", volatility = "immutable" },
  { name = "shout", arguments = ["text"], returns = "text", batch = "arrow", volatility = "immutable" },
  { name = "day_after", arguments = ["timestamp"], returns = "timestamp", volatility = "immutable" },
  { name = "total", arguments = ["float8[]"], returns = "(sum float8, count int4)", volatility = "immutable" },
  { name = "fail_at", arguments = ["int8"], returns = "int8" },
  { name = "strict_fail_at", arguments = ["int8"], returns = "int8", strict = true },
  { name = "is_null", arguments = ["int8", "int8"], returns = "bool", volatility = "immutable" },
  { name = "strict_is_null", arguments = ["int8", "int8"], returns = "bool", strict = true, volatility = "immutable" },
  { name = "tenth", arguments = ["numeric"], returns = "numeric", volatility = "immutable" },
  { name = "swap", arguments = ["(a int4, b int4)"], returns = "(a int4, b int4)", volatility = "immutable" },
  { name = "count_all", arguments = [], returns = "int4" },
]
TOML
cp "$folder/function/handler.py" "$folder/handler.py"
build_image "$folder"
port=$("$ROOT/target/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$BUILD/transship" ddl --engine spark --endpoint "grpc://127.0.0.1:$port" spark_functions:1.0 > "$folder/functions_for_spark.py"
"$ROOT/target/venv/bin/python" - "$folder" <<'PYTHON'
import json, sys, tomllib

with open(f"{sys.argv[1]}/transship.toml", "rb") as file:
    manifest = {"handler": "handler.py"} | tomllib.load(file)
with open(f"{sys.argv[1]}/manifest.json", "w") as file:
    json.dump(manifest, file)
PYTHON
TRANSSHIP_ROOT=$folder PYTHONPATH=$ROOT/container_templates/python TRANSSHIP_FLIGHT_PORT=$port "$ROOT/target/venv/bin/python" -m transship_server serve 2> "$ROOT/target/spark-server.log" &
server=$!
trap 'kill $server; rm -r "$folder"' EXIT
say "Waiting for the server"
for _ in $(seq 600); do
  if (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break; fi
  sleep 0.1
done
say "Calling functions from Spark"
export PYSPARK_PYTHON=$ROOT/target/venv-spark/bin/python SPARK_LOCAL_IP=127.0.0.1
PYTHONPATH=$folder "$PYSPARK_PYTHON" sql/functions/spark_queries.py 2> "$ROOT/target/spark.log" || { tail -n 30 "$ROOT/target/spark.log" >&2; exit 1; }
