"""What the tests of the SQL Server extension need: the host, the extension, the manager that `tests/mssqlcheck.sh` has
started, and PostgreSQL beside it."""

import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "target/release"
JOBS = ROOT / "mssql_ext/jobs"
EXPECTED = ROOT / "mssql_ext/expected"


class Run:
    """What a run of the host printed."""

    def __init__(self, process):
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr

    @property
    def statistics(self):
        """Numbers that --statistics prints, by name."""
        return {name: int(value) for name, value in re.findall(r"^(\w+) (-?\d+)$", self.err, re.MULTILINE)}


@pytest.fixture
def host(tmp_path):
    """Runs a job, given as text or as a file: host(job, *flags, env={...})."""

    def run(job, *flags, env=None, extension=None, prefix=(), timeout=120):
        if not isinstance(job, pathlib.Path):
            path = tmp_path / "job.sql"
            path.write_text(job)
            job = path
        extension = extension or os.environ["EXTHOST_EXTENSION"]
        command = [*prefix, os.environ.get("EXTHOST", str(BUILD / "exthost")), "--extension", str(extension), *map(str, flags), str(job)]
        # What a test does not allow itself is allowed.
        allowed = {"TRANSSHIP_ALLOWED": "*"}
        environment = os.environ | allowed | {key: str(value) for key, value in (env or {}).items()}
        process = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
        return Run(process)

    return run


@pytest.fixture
def call(host):
    """Runs one script: call("image = ...", columns="x int", rows=["1"], arguments="@k = 1"). Everything is T-SQL."""

    def run(script, *flags, columns=None, rows=(), select="*", arguments="", results="", **options):
        job = ""
        query = ""
        if columns:
            job += f"CREATE TABLE t ({columns});\n"
            job += "".join(f"INSERT INTO t VALUES ({row});\n" for row in rows)
            query = f", @input_data_1 = N'SELECT {select} FROM t'"
        script = script.replace("'", "''")
        arguments = f", {arguments}" if arguments else ""
        job += f"EXEC sp_execute_external_script @language = N'Container', @script = N'{script}'{query}{arguments} {results};"
        return host(job, *flags, **options)

    return run


def transship(*arguments):
    """Runs the command line; its standard output."""
    return subprocess.run([BUILD / "transship", *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


def replicas(image):
    """The replicas of an image, as `transship ps` shows them: name, state, leases."""
    found = []
    for line in transship("ps").splitlines()[1:]:
        name, of, state, leases, *_ = line.split()
        if of == image:
            found.append((name, state, int(leases)))
    return found


def normalize(text):
    """Without what differs from run to run, and from day to day: times, where files lie, how many functions an image has."""
    text = re.sub(r" and \d+ more\.", " and N more.", text)
    text = re.sub(r"^\d{4}-\d\d-\d\d [\d:.]+Z Error:", "Error:", text, flags=re.MULTILINE)
    return re.sub(r'  File ".*/([^/]*)", line \d+', r'  File "\1", line N', text)


def dump(value):
    return json.dumps(value, ensure_ascii=False)
