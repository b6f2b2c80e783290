"""Servers that speak other protocols, for sql/dialects.sql: dialect_servers.py FOLDER PORT PORT PORT PORT PORT PORT PORT PORT.

The first six are published packages as they are: databend-udf, singlestoredb, functions-framework (BigQuery), mlflow,
azureml-inference-server-http, and awslambdaric (Redshift's functions) behind an emulator of Lambda's front. The seventh
answers as documented, since their servers cannot be had: Snowflake's and functions on Azure. The eighth is a put-and-get
Flight server. MLflow before 2.0 is old_mlflow_server.py.
"""

import http.server
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
import uuid

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


# Azure ML: this file is its entry script, with init() and run().


def init():
    pass


def run(text):
    return [row[0] > row[1] for row in json.loads(text)["data"]]


def serve_azure_ml(port):
    os.environ["AZUREML_ENTRY_SCRIPT"] = os.path.abspath(__file__)
    from azureml_inference_server_http.server.entry import app

    werkzeug.serving.make_server(HOST, port, app, threaded=True).serve_forever()


# Redshift's Lambda functions: Lambda's Python runtime asks the emulator for events and gives it the answers.


def redshift(event, context):
    assert event["num_records"] == len(event["arguments"]) and event["external_function"] == "redshift_sum"
    if any(row[0] == 13 for row in event["arguments"]):
        return {"success": False, "error_msg": "13 is bad"}
    if any(row[0] == 14 for row in event["arguments"]):
        raise ValueError("14 is worse")
    results = [None if None in row else row[0] + row[1] for row in event["arguments"]]
    # As the samples do: the text of JSON, which the runtime writes as JSON again.
    return json.dumps({"success": True, "num_records": len(results), "results": results})


class JsonHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, status, payload, headers=()):
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format, *args):
        pass


class Emulator(JsonHandler):
    events = queue.Queue()
    answers = {}

    def do_GET(self):
        event, number = self.events.get()
        deadline = str(int(time.time() * 1000) + 60000)
        headers = [("Lambda-Runtime-Aws-Request-Id", number), ("Lambda-Runtime-Deadline-Ms", deadline)]
        self.reply(200, event, [*headers, ("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:::function")])

    def do_POST(self):
        body, parts = self.body(), self.path.strip("/").split("/")
        if parts[:3] == ["2018-06-01", "runtime", "invocation"]:
            self.answers[parts[3]].put(body)
            self.reply(202, b"{}")
            return
        number = str(uuid.uuid4())
        self.answers[number] = queue.Queue()
        self.events.put((body, number))
        self.reply(200, self.answers[number].get(timeout=60))
        del self.answers[number]


def serve_lambda(port):
    front = http.server.ThreadingHTTPServer((HOST, port), Emulator)
    # It ends when the front does, which it cannot do without.
    environment = {**os.environ, "AWS_LAMBDA_RUNTIME_API": f"{HOST}:{port}"}
    folder = os.path.dirname(os.path.abspath(__file__))
    subprocess.Popen([sys.executable, "-m", "awslambdaric", "dialect_servers.redshift"], env=environment, cwd=folder)
    front.serve_forever()


# What is documented


class Recorded(JsonHandler):
    promised = {}
    busy = set()

    def do_POST(self):
        body = json.loads(self.body())
        status, answer = getattr(self, "answer_" + self.path.strip("/").split("/")[0].split("?")[0].replace("-", "_"))(body)
        self.reply(status, answer.encode())

    def do_GET(self):
        # Snowflake asks again with the headers of its request.
        wait, answer = self.promised[self.headers["sf-external-function-query-batch-id"]]
        self.reply(*((200, answer.encode()) if time.monotonic() >= wait else (202, b"")))

    def answer_snowflake(self, body):
        assert self.headers["sf-external-function-format"] == "json", dict(self.headers)
        assert self.headers["sf-external-function-name"] == "snowflake_length"
        if self.headers["x-api-key"] != "s3cret":
            return 403, json.dumps({"message": "the API key is missing"})
        answer = json.dumps({"data": [[number, None if text is None else len(text)] for number, text in body["data"]]})
        batch = self.headers["sf-external-function-query-batch-id"]
        self.promised[batch] = (time.monotonic() + 0.2, answer)
        return 202, ""

    def answer_api(self, rows):
        # Bare rows in, bare results out, with Python's words for what JSON lacks.
        return 200, json.dumps([sum(row) for row in rows])

    def answer_busy(self, rows):
        # The first time each request comes, the server is busy.
        key = json.dumps(rows)
        if key not in self.busy:
            self.busy.add(key)
            return 503, "busy"
        return 200, json.dumps([row[0] for row in rows])


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
    databend, singlestore, bigquery_port, mlflow_port, azure_ml, aws_lambda, recorded, put_get = map(int, ports)
    app = functions_framework.create_app("bigquery", __file__)
    started = [
        lambda: serve_databend(databend),
        lambda: serve_asgi(create_app([multiplied, shouted]), singlestore),
        lambda: werkzeug.serving.make_server(HOST, bigquery_port, app, threaded=True).serve_forever(),
        lambda: serve_mlflow(mlflow_port, folder),
        lambda: serve_azure_ml(azure_ml),
        lambda: serve_lambda(aws_lambda),
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
