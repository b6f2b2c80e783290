"""What sessions see of their calls: traces, and lines that handlers write. tests/observability.py calls it."""

import collections
import http.server
import json
import os
import subprocess
import threading
import time

TRANSPORTS = ("shm", "socket", "json", "flight")
# The handler writes what it is called with, on both streams and by logging, and from a thread that belongs to nobody's call.
WORDY = """
import logging, os, sys, threading
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
"""
WORDY_BODY = """
    print("called with", x)
    print("\\x1b[2Jerror stream", x, file=sys.stderr)
    logging.info("logged %s", x)
    thread = threading.Thread(target=print, args=("of a thread", x)); thread.start(); thread.join()
    if x == 7: print("process", os.getpid())
    if x == 13: raise ValueError("thirteen")
    return 2 * x
"""


class Collector:
    """Takes spans as an OpenTelemetry collector does (OTLP/HTTP, JSON)."""

    def __init__(self):
        self.spans, self.resources = [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/json"
                for resource in body["resourceSpans"]:
                    collector.resources.append(resource["resource"])
                    for scope in resource["scopeSpans"]:
                        collector.spans.extend(scope["spans"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, trace):
        return [span for span in self.spans if span["traceId"] == trace]

    def end(self):
        self._server.shutdown()


def ask(query, is_seen=None, **settings):
    """A session's answer, and what it was told besides."""
    options = [f"-c transship.{name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "PGOPTIONS": " ".join([os.environ["PGOPTIONS"], *options])}
    command = ["psql", "--no-psqlrc", "--quiet", "-At", "--dbname", "observed"]
    if "traceparent" not in settings:
        done = subprocess.run([*command, "--command", query], capture_output=True, text=True, timeout=120, env=environment)
        return done.returncode, done.stdout, done.stderr
    # Spans leave in the background: the session stays until they are seen, or for two seconds where there must be none.
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen([*command, "--file=-"], text=True, env=environment, **pipes) as session:
        said, end = f"{query};", time.monotonic() + (60 if is_seen else 2)
        while time.monotonic() < end and not (is_seen and is_seen()):
            print(said, file=session.stdin, flush=True)
            said = "DO 'BEGIN PERFORM pg_sleep(0.1); END';"
            time.sleep(0.1)
        answer, told = session.communicate(timeout=120)
    return session.returncode, answer, told


def attributes_of(span):
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def check_traces(collector, until):
    parent = "00f067aa0ba902b7"
    for number, transport in enumerate(TRANSPORTS, start=1):
        trace = f"4bf92f3577b34da6a3ce929d0e0e{number:04x}"

        def tree():
            spans = collector.of(trace)
            kinds = collections.Counter(span["name"] for span in spans)
            rows = sum(int(attributes_of(span)["transship.rows"]) for span in spans if span["name"] == "batch")
            return kinds["query"] == kinds["exchange"] == 1 and kinds["batch"] >= 2 and kinds["observed"] >= 2 and rows >= 3000

        query = "SELECT sum(observed(x)) FROM generate_series(1, 3000) x"
        answered = ask(query, tree, transport=transport, traceparent=f"00-{trace}-{parent}-01")
        assert answered == (0, "9003000\n", ""), answered
        until(f"the spans of {transport} are exported", tree)
        spans = collector.of(trace)
        by_id = {span["spanId"]: span for span in spans}
        assert len(by_id) == len(spans), "two spans have one number"
        parents = {"query": None, "exchange": "query", "reach server": "exchange", "batch": "exchange", "observed": "batch"}
        rows = 0
        for span in spans:
            above = by_id.get(span["parentSpanId"])
            assert (above["name"] if above else None) == parents[span["name"]], span
            if above is None:
                assert span["parentSpanId"] == parent, span
            else:
                # The exchange's clock and the query's are read one after the other, with whatever comes in between.
                assert int(above["startTimeUnixNano"]) - 10**9 <= int(span["startTimeUnixNano"]), (above, span)
                assert int(span["endTimeUnixNano"]) <= int(above["endTimeUnixNano"]) + 10**9, (above, span)
            if span["name"] == "batch":
                rows += int(attributes_of(span)["transship.rows"])
            if span["name"] == "reach server":
                assert attributes_of(span)["transship.transport"] == transport, span
        assert rows == 3000
    # A trace that is not sampled is carried, and not exported; a value that is none traces nothing.
    for value in ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "none"):
        count = len(collector.spans)
        assert ask("SELECT observed(1)", traceparent=value)[:2] == (0, "2\n")
    failing = "4bf92f3577b34da6a3ce929d0e0effff"

    def is_exported():
        return len(collector.of(failing)) >= 2

    _, _, told = ask("SELECT wordy(x) FROM generate_series(1, 20) x", is_exported, traceparent=f"00-{failing}-{parent}-01")
    assert "thirteen" in told
    until("the failed exchange is exported", is_exported)
    failed = [span["status"] for span in collector.of(failing) if span["name"] == "exchange"]
    assert failed == [{"code": 2, "message": "user_code"}], failed
    assert not collector.of("4bf92f3577b34da6a3ce929d0e0e4736") and count == len(collector.spans) - len(collector.of(failing))
    assert "thirteen" not in json.dumps(collector.spans)
    print(f"{len(collector.spans)} spans were exported as they should be")


def check_lines(stage, until):
    for transport in TRANSPORTS:
        code, answer, told = ask("SELECT wordy(1)", transport=transport, log_handlers="notice")
        assert (code, answer) == (0, "2\n"), told
        expected = [
            'NOTICE:  container function "wordy": called with 1',
            'NOTICE:  container function "wordy": \\u{1b}[2Jerror stream 1',
            'NOTICE:  container function "wordy": INFO logged 1',
        ]
        assert told.splitlines() == expected, (transport, told)
        # Lines before an error are told before it.
        code, _, told = ask("SELECT wordy(13)", transport=transport, log_handlers="notice")
        assert code == 1 and told.index("called with 13") < told.index("ERROR:"), (transport, told)
    assert ask("SELECT wordy(1)") == (0, "2\n", "")
    _, _, told = ask("SELECT count(wordy(x)) FROM generate_series(100, 4000) x", log_handlers="notice", batch_time=0)
    assert "more lines are in the container's log]" in told, told[-500:]
    assert 100 <= len(told.splitlines()) < 1500, len(told.splitlines())
    # Sessions that share a replica get their own lines alone.
    told = {}

    def call(number):
        query = f"SELECT count(wordy({number} + x % 2)) FROM generate_series(1, 30) x"
        told[number] = [ask(query, log_handlers="notice") for _ in range(3)]

    threads = [threading.Thread(target=call, args=[number * 1000]) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answers in told.items():
        for code, answer, notices in answers:
            assert (code, answer) == (0, "30\n"), notices
            values = {line.rsplit(" ", 1)[1] for line in notices.splitlines() if "called with" in line}
            assert values == {str(number), str(number + 1)}, (number, values)
    # All of it is in the container's log, also once the container is gone.
    replica = next(name for name in stage.transship("ps").split() if name.startswith("transship-wordy"))
    log = stage.transship("logs", replica)
    assert "of a thread" in log and "called with" in log, log[-500:]
    _, _, told = ask("SELECT wordy(7)", log_handlers="notice")
    os.kill(int(told.split("process ")[1].split()[0]), 9)
    until("the replica is gone", lambda: replica not in stage.transship("ps"))
    assert "called with" in stage.transship("logs", replica)
    stage.transship("logs", "transship-no-such-replica", fails=True)
    print("sessions are told what handlers write in their own calls")


def check_log(text):
    """Every line of the manager's log is an object of its own."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines), lines
    events = {line["event"] for line in lines}
    assert {"ready", "metrics_served", "lease_acquired", "lease_ended"} <= events, events
    for line in lines:
        if line["event"].startswith("lease_"):
            assert {"replica", "image", "lease", "user", "pid"} <= line.keys(), line
    assert "the-secret-of-a-handler" not in text and "called with" not in text
    print(f"{len(lines)} lines of the log are as they should be")
