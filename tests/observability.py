"""Looks at a manager under load as an operator does. tests/observability.sh calls it, with PostgreSQL's cluster running."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import observability_calls as calls

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ["BUILD"])
# It is served, and once it is it ends.
BROKEN = "import os\nif 'TRANSSHIP_SOCKET_DIR' in os.environ:\n    print('the-secret-of-a-handler', flush=True)\n    os._exit(3)\n"


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode()


def until(what, probe, seconds=60):
    """What the probe gives as soon as it is true."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = probe()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.2)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Stage:
    """A manager of its own, on the process runtime, and what runs beside it."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []
        for name, path in (("SOCKET", "m.sock"), ("STATE_DIR", "state"), ("RUN_DIR", "r")):
            os.environ[f"TRANSSHIP_{name}"] = str(folder / path)
        os.environ["PGOPTIONS"] = f"-c transship.manager_socket={folder / 'm.sock'}"

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "w") as log:
            self.running.append(subprocess.Popen([str(part) for part in command], stdout=log, stderr=log))

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def end(self):
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()

    def transship(self, *arguments, fails=False):
        done = subprocess.run([BUILD / "transship", *arguments], capture_output=True, text=True, timeout=300)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout

    def build(self, name, handler, body="return 2 * x"):
        project = self.folder / name
        project.mkdir()
        (project / "handler.py").write_text(f"{handler}\n\ndef {name}(x):\n    {body}\n")
        (project / "transship.toml").write_text(
            f'name = "{name}"\nversion = "1.0"\ntemplate = "python"\n'
            f'[[functions]]\nname = "{name}"\narguments = ["x int8"]\nreturns = "int8"\n'
        )
        self.transship("build", project)


def psql(database, query):
    done = subprocess.run(
        ["psql", "--no-psqlrc", "--quiet", "-At", "--set=ON_ERROR_STOP=1", "--dbname", database, "--command", query],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def call_for_a_while(ended):
    """A session after the other, so that leases begin and end."""
    while not ended.is_set():
        assert psql("observed", "SELECT sum(observed(x)) FROM generate_series(1, 1000) x").strip() == "1001000"


def check_dashboard(dashboard):
    """What Grafana's documentation of a dashboard's JSON requires of what is used here."""
    assert dashboard["title"] and dashboard["uid"] and isinstance(dashboard["schemaVersion"], int)
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    identifiers, covered = set(), set()
    for panel in dashboard["panels"]:
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["targets"], panel
        identifiers.add(panel["id"])
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & covered and at["x"] + at["w"] <= 24, f"{panel['title']} covers another panel"
        covered |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for text in re.findall(r"\$\{?(\w+)", json.dumps(panel)):
            assert text in names or text.startswith("__"), f"there is no variable {text}"
    assert len(identifiers) == len(dashboard["panels"])


def evaluate(prometheus, query):
    answer = json.loads(get(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def alert_rules(prometheus):
    return json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"][0]["rules"]


def check_queries(prometheus):
    dashboard = json.loads((ROOT / "dashboards/manager.json").read_text())
    check_dashboard(dashboard)
    count = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            # Long enough for whatever has happened once, such as the start of a replica.
            query = target["expr"].replace("$__rate_interval", "10m").replace("$job", "transship").replace("$instance", ".*")
            found = evaluate(prometheus, query)
            values = [float(series["value"][1]) for series in found]
            assert values and all(value == value and value >= 0 for value in values), f"{panel['title']}: {query}: {found}"
            count += 1
    for variable in dashboard["templating"]["list"][1:]:
        name, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        assert all(label in series["metric"] for series in evaluate(prometheus, name.replace("$job", ".*")))
    for rule in yaml.safe_load((ROOT / "dashboards/alerts.yml").read_text())["groups"][0]["rules"]:
        # Without what is compared with, each has values: a rule over metrics that nobody has would never fire.
        query = re.sub(r" (>|==) [\d.]+", "", rule["expr"])
        query = query.replace('state="open"', 'state!=""')
        assert evaluate(prometheus, query), f"{rule['alert']}: {query}"
        count += 1
    rules = alert_rules(prometheus)
    assert all(rule["health"] == "ok" for rule in rules), rules
    print(f"{count} queries of the dashboard and the alerts have values")


def browse(folder, *arguments):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--enable-logging=stderr", "--host-resolver-rules=MAP * 127.0.0.1", f"--user-data-dir={folder / 'browser'}",
         *arguments],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Content Security Policy" not in done.stderr, done.stderr
    return done.stdout


def check_page(folder, door, port):
    page = browse(folder, "--dump-dom", f"{door}/")
    for text in ("<h1>Transship ", "<bdi>observed:1.0</bdi>", "<bdi>broken:1.0</bdi>", "reason=\"start_failed\""):
        assert text in page, f"{text} is not in {page}"
    assert "the-secret-of-a-handler" not in page and "<script" not in page
    picture = folder / "page.png"
    browse(folder, f"--screenshot={picture}", "--window-size=1000,900", f"{door}/")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    if kept := os.environ.get("TRANSSHIP_WRITE_SCREENSHOT"):
        shutil.copy(picture, kept)
    # Another site's name may stand for this host, but the browser says it.
    page = browse(folder, "--dump-dom", f"http://evil.example:{port}/")
    assert "not one of the manager's" in page and "observed" not in page, page
    for headers, expected in (({"Host": "evil.example"}, 421), ({}, 405)):
        try:
            request = urllib.request.Request(f"{door}/metrics", headers=headers, data=None if headers else b"x")
            urllib.request.urlopen(request, timeout=10)
            raise AssertionError(f"{headers} was answered")
        except urllib.error.HTTPError as refusal:
            assert refusal.code == expected
    print("the status page is as it should be in a browser")


def check_statistics(stage):
    table = stage.transship("stats")
    assert re.search(r"^transship_replicas +[1-9]\d* +image=\"observed:1.0\",state=\"ready\"$", table, re.MULTILINE), table
    assert "_bucket" not in table
    text = stage.transship("stats", "--prometheus")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "the-secret-of-a-handler" not in text
    functions = stage.transship("stats", "--dsn", "dbname=observed")
    assert "public.observed" in functions, functions
    queries = yaml.safe_load((ROOT / "dashboards/postgres_exporter.yml").read_text())
    for query in queries.values():
        described = [name for metric in query["metrics"] for name in metric]
        row = json.loads(psql("observed", f"SELECT to_json(q) FROM ({query['query']}) q").splitlines()[0])
        assert list(row) == described, (list(row), described)
        assert row["name"] == "observed" and row["rows_total"] >= 1000 and row["errors_total"] == 0, row
    print("the counters of the manager and of the backends are as they should be")


def finds_circuit(stage):
    """Whether the doctor says which image it is whose containers keep ending, while none is started."""
    stage.transship("conformance", "broken:1.0", "--quiet", fails=True)
    done = subprocess.run([BUILD / "transship", "doctor"], capture_output=True, text=True, timeout=60)
    return done.returncode == 1 and "FAILED  replicas: containers keep ending, of image broken:1.0" in done.stdout


def run(folder):
    stage = Stage(folder)
    port, prometheus_port = free_port(), free_port()
    door, prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{prometheus_port}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "dashboards/alerts.yml")],
        "scrape_configs": [{"job_name": "transship", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }))
    collector = calls.Collector()
    ended = threading.Event()
    load = threading.Thread(target=call_for_a_while, args=[ended])
    try:
        stage.start(
            "manager", BUILD / "transshipd", "--allow-user=postgres", f"--metrics-listen=127.0.0.1:{port}",
            f"--otlp-endpoint={collector.endpoint}", "--log-format=json", "--log-leases",
        )
        until("the manager starts", lambda: "transship_containers 0" in get(f"{door}/metrics"))
        stage.start(
            "prometheus", "prometheus", f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{prometheus_port}",
        )
        until("Prometheus starts", lambda: get(f"{prometheus}/-/ready"))
        stage.build("observed", "")
        stage.build("broken", BROKEN)
        stage.build("wordy", calls.WORDY, calls.WORDY_BODY)
        psql("postgres", "DROP DATABASE IF EXISTS observed")
        psql("postgres", "CREATE DATABASE observed")
        psql("observed", "CREATE EXTENSION transship")
        for image in ("observed:1.0", "wordy:1.0"):
            stage.transship("register", image, "--dsn", "dbname=observed")
        calls.check_traces(collector, until)
        calls.check_lines(stage, until)

        def replicas_end():
            """Each ends before it answers. The pauses between them grow, so Prometheus sees their number grow."""
            stage.transship("conformance", "broken:1.0", "--quiet", fails=True)
            active = [rule["name"] for rule in alert_rules(prometheus) if rule["state"] != "inactive"]
            return "TransshipReplicasEnd" in active

        until("an alert becomes active", replicas_end)
        until("the doctor finds a circuit", lambda: finds_circuit(stage))
        load.start()
        until("a lease is counted", lambda: re.search(r"transship_lease_wait_seconds_count\S* [1-9]", get(f"{door}/metrics")))
        # Rates need two scrapes.
        scraped = 'count_over_time(transship_lease_wait_seconds_count{image="observed:1.0"}[1m]) > 5'
        until("Prometheus has seen it", lambda: evaluate(prometheus, scraped))
        # An error whose counter began at zero is needed in two scrapes as well.
        until("errors are seen", lambda: evaluate(prometheus, "count_over_time(transship_lease_errors_total[1m]) > 2"))
        check_queries(prometheus)
        check_statistics(stage)
        check_page(folder, door, port)
    except BaseException:
        for name in ("manager", "prometheus"):
            print((folder / f"{name}.log").read_text()[-3000:] if (folder / f"{name}.log").exists() else "")
        raise
    finally:
        ended.set()
        if load.ident:
            load.join()
        stage.end()
        psql("postgres", "DROP DATABASE IF EXISTS observed WITH (FORCE)")
        collector.end()
    assert "panicked" not in stage.log("manager"), stage.log("manager")
    calls.check_log(stage.log("manager"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ts", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        run(pathlib.Path(name))
