"""Servers that speak other protocols, for sql/dialects.sql: dialect_servers.py FOLDER PORT PORT PORT PORT PORT PORT.

The first four are published packages as they are: databend-udf, singlestoredb, functions-framework (BigQuery) and mlflow.
The fifth answers as documented, since their servers cannot be had: Snowflake's, Redshift's behind the Lambda runtime
interface emulator, functions on Azure, Azure ML, and MLflow before 2.0. The sixth is a put-and-get Flight server.
"""

import http.server
import json
import math
import sys
import threading
import time

import databend_udf
import functions_framework
import mlflow
import pandas
import pyarrow as pa
import pyarrow.flight
import uvicorn
import werkzeug.serving
from singlestoredb.functions import udf as singlestore_udf
from singlestoredb.functions.ext.asgi import create_app

HOST = "127.0.0.1"


# Databend


@databend_udf.udf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
def common_divisor(x, y):
    return math.gcd(x, y)


@databend_udf.udf(input_types=["VARCHAR"], result_type="VARCHAR", skip_null=True)
def reversed_text(text):
    if text == "wrong":
        raise ValueError("the text is wrong")
    return text[::-1]


@databend_udf.udf(input_types=["DECIMAL(18, 2)"], result_type="DECIMAL(18, 2)", skip_null=True)
def doubled(x):
    return x * 2


@databend_udf.udf(input_types=["VARIANT"], result_type="BINARY", skip_null=True)
def keys_of(value):
    return ",".join(value).encode()


@databend_udf.udf(input_types=["ARRAY(BIGINT)"], result_type="BIGINT", skip_null=True)
def total_of(values):
    return sum(values)


def serve_databend(port):
    server = databend_udf.UDFServer(f"{HOST}:{port}")
    for function in (common_divisor, reversed_text, doubled, keys_of, total_of):
        server.add_function(function)
    server.serve()


# SingleStore


@singlestore_udf
def multiplied(x: int, y: int) -> int:
    return x * y


@singlestore_udf
def shouted(text: str) -> str:
    return text.upper()


# BigQuery: rows of a text and a count; a large integer comes as a string.


def bigquery(request):
    body = request.get_json()
    try:
        return {"replies": [None if x is None else str(int(x) + 1) for (x,) in body["calls"]]}
    except ValueError as error:
        return {"errorMessage": f"not a number: {error}"}, 400


# MLflow


class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if isinstance(model_input, dict):
            model_input = pandas.DataFrame(model_input)
        return (model_input["a"].astype(float) * 2 + model_input["b"]).tolist()


def serve_mlflow(port, folder):
    from mlflow.pyfunc import scoring_server

    mlflow.pyfunc.save_model(f"{folder}/model", python_model=Model())
    app = scoring_server.init(mlflow.pyfunc.load_model(f"{folder}/model"))
    serve_asgi(app, port)


def serve_asgi(app, port):
    uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning")).run()


# What is documented


class Recorded(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    promised = {}
    busy = set()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = getattr(self, "answer_" + self.path.strip("/").split("/")[0].split("?")[0].replace("-", "_"))(body)
        self.reply(status, answer)

    def do_GET(self):
        # Snowflake asks again with the headers of its request.
        wait, answer = self.promised[self.headers["sf-external-function-query-batch-id"]]
        self.reply(*((200, answer) if time.monotonic() >= wait else (202, "")))

    def reply(self, status, answer):
        payload = answer.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def answer_snowflake(self, body):
        assert self.headers["sf-external-function-format"] == "json", dict(self.headers)
        assert self.headers["sf-external-function-name"] == "snowflake_length"
        if self.headers["x-api-key"] != "s3cret":
            return 403, json.dumps({"message": "the API key is missing"})
        answer = json.dumps({"data": [[number, None if text is None else len(text)] for number, text in body["data"]]})
        batch = self.headers["sf-external-function-query-batch-id"]
        self.promised[batch] = (time.monotonic() + 0.2, answer)
        return 202, ""

    def answer_2015_03_31(self, body):
        assert body["num_records"] == len(body["arguments"]) and body["external_function"] == "redshift_sum"
        if any(row[0] == 13 for row in body["arguments"]):
            return 200, json.dumps({"success": False, "error_msg": "13 is bad"})
        results = [None if None in row else row[0] + row[1] for row in body["arguments"]]
        # As the samples do: the text of JSON, which the runtime writes as JSON again.
        return 200, json.dumps(json.dumps({"success": True, "num_records": len(results), "results": results}))

    def answer_api(self, rows):
        # Bare rows in, bare results out, with Python's words for what JSON lacks.
        return 200, json.dumps([sum(row) for row in rows])

    def answer_score(self, body):
        return 200, json.dumps([row[0] > row[1] for row in body["data"]])

    def answer_invocations(self, body):
        place = body["columns"].index("b")
        return 200, json.dumps([row[place] for row in body["data"]])

    def answer_busy(self, rows):
        # The first time each request comes, the server is busy.
        key = json.dumps(rows)
        if key not in self.busy:
            self.busy.add(key)
            return 503, "busy"
        return 200, json.dumps([row[0] for row in rows])

    def log_message(self, format, *args):
        pass


# The paper's Flight server


class PutGet(pa.flight.FlightServerBase):
    tables = {}

    def do_put(self, context, descriptor, reader, writer):
        assert descriptor.path == [b"scoreit"]
        self.tables["in"] = reader.read_all()

    def do_action(self, context, action):
        assert action.type == "score"
        table = self.tables["in"]
        # Callers who did not wait for each other would get each other's results.
        time.sleep(0.02)
        self.tables["out"] = pa.table({"0": [sum(row.values()) for row in table.to_pylist()]})
        yield b"done"

    def do_get(self, context, ticket):
        assert ticket.ticket == b"scored"
        return pa.flight.RecordBatchStream(self.tables["out"])


def main(folder, *ports):
    databend, singlestore, bigquery_port, mlflow_port, recorded, put_get = map(int, ports)
    app = functions_framework.create_app("bigquery", __file__)
    started = [
        lambda: serve_databend(databend),
        lambda: serve_asgi(create_app([multiplied, shouted]), singlestore),
        lambda: werkzeug.serving.make_server(HOST, bigquery_port, app, threaded=True).serve_forever(),
        lambda: serve_mlflow(mlflow_port, folder),
        http.server.ThreadingHTTPServer((HOST, recorded), Recorded).serve_forever,
        lambda: PutGet(f"grpc://{HOST}:{put_get}").serve(),
    ]
    threads = [threading.Thread(target=serve, daemon=True) for serve in started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
