"""SQL Server's satellite process, played by the test host, which is killed at every call of the API."""

import os
import re
import signal
import subprocess
import time

import pytest
from conftest import BUILD, ROOT, answers, long, query, wait_until

EXTENSION = os.environ.get("EXTHOST_EXTENSION", str(BUILD / "libtransship_mssql.so"))
# In the order of a session.
CALLS = [
    "GetInterfaceVersion", "Init", "InitSession", "InitColumn", "InitParam", "Execute", "Execute:2", "GetResultColumn",
    "GetResults", "GetResults:2", "GetOutputParam", "GetTelemetryResults", "CleanupSession", "Cleanup",
]  # fmt: skip
KILLED = "Msg 39004: the query was cancelled\n"


@pytest.fixture
def job(manager, tmp_path):
    """Runs a script on numbers in a process of the host: job(script, rows, *flags)."""

    def run(script, rows, *flags, parameters=""):
        path = tmp_path / "job.sql"
        inserts = "".join(f"INSERT INTO t VALUES ({row});\n" for row in rows)
        path.write_text(
            f"CREATE TABLE t (x bigint);\n{inserts}EXEC sp_execute_external_script @language = N'Container', "
            f"@script = N'{script}', @input_data_1 = N'SELECT x FROM t'{parameters};"
        )
        command = [str(BUILD / "exthost"), "--extension", EXTENSION, *map(str, flags), str(path)]
        environment = manager.environment | {"TRANSSHIP_ALLOWED": "*"}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)

    return run


ADD_ONE = 'image = "faults:1.0" function = "add_one"'
NAP = 'image = "faults:1.0" function = "nap" max_batch_rows = 4'


def expected(count):
    return "column1\n" + "".join(f"{x + 1}\n" for x in range(1, count + 1))


SHORT = {"InitSession", "Execute", "Execute:2", "GetResults", "CleanupSession"}


@pytest.mark.parametrize("call", [call if call in SHORT else pytest.param(call, marks=long) for call in CALLS])
def test_killed_at_a_call(case, job, call):
    """Whatever it has just done: nothing is left of it, and the next one works."""
    parameters = (
        ", @params = N'@ms bigint, @seen bigint OUTPUT, @r_rowsPerRead int', @ms = 1, @seen = 0, @r_rowsPerRead = 8"
    )
    done = job(NAP, range(1, 21), "--kill-at", call, parameters=parameters)
    assert done.stdout == KILLED, done.stdout + done.stderr
    assert job(ADD_ONE, range(1, 21)).stdout == expected(20)


@pytest.mark.parametrize("milliseconds", [50, 200, 600])
def test_killed_in_mid_batch(case, job, milliseconds):
    script = NAP.replace("max_batch_rows = 4", "max_batch_rows = 10")
    done = job(script, range(1, 101), "--kill-after-ms", milliseconds, parameters=", @params = N'@ms bigint', @ms = 50")
    assert done.stdout == KILLED, done.stdout + done.stderr
    # Its lease ends with it, not with the batch that is still computed.
    wait_until("its lease has ended", lambda: not any(each["leases"] for each in case.manager.replicas()), within=3)
    assert job(ADD_ONE, range(1, 21)).stdout == expected(20)


def test_replica_killed(case, job, tmp_path):
    """The container's end is one error of the query."""
    done = job('image = "faults:1.0" function = "leave"', range(1, 101), parameters=", @params = N'@bad bigint', @bad = 50")
    assert done.returncode != 0
    assert 'connection to the container of function "leave" was lost' in done.stderr, done.stderr
    assert "exited with status 9" in done.stderr
    assert job(ADD_ONE, range(1, 21)).stdout == expected(20)
