"""The extension's process: settings, versions, cancellation, several sessions, hostile hosts, memory."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

from conftest import JOBS, ROOT, replicas, transship

ADD_ONE = 'image = "regress:1.0" function = "add_one_arrow"'


def test_a_cancelled_query_frees_its_lease_and_leaves_the_replica_working(call):
    run = call('image = "regress:1.0" function = "wait_for"', "--kill-after-ms", 1500, columns="s float", rows=["30"])
    assert run.out == "Msg 39004: the query was cancelled\n"
    deadline = time.monotonic() + 10
    while any(leases for _, _, leases in replicas("regress:1.0")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [leases for _, _, leases in replicas("regress:1.0")] == [0]
    assert call(ADD_ONE, columns="x bigint", rows=["1"]).out == "column1\n2\n"


def test_sessions_of_one_process_do_not_meet(call):
    rows = [str(number) for number in range(200)]
    run = call(ADD_ONE + " max_batch_rows = 7", "--sessions", 6, columns="x bigint", rows=rows)
    assert run.out == "column1\n" + "".join(f"{number + 1}\n" for number in range(200))
    run = call(ADD_ONE + " max_batch_rows = 7", "--sessions", 6, "--flip", "11", columns="x bigint", rows=rows)
    assert run.code == 0, run.out + run.err


def test_parallel_tasks_have_all_rows_once_and_may_have_none(call):
    for tasks in (1, 3, 8):
        run = call(ADD_ONE, "--tasks", tasks, columns="x bigint", rows=["5", "6", "7"], arguments="@parallel = 1")
        assert run.out == "column1\n6\n7\n8\n"


def test_map_functions_run_in_parallel_by_partition_alone(call):
    script = 'image = "regress:1.0" function = "running_total" bind = "name"'
    table = {"columns": "g int NOT NULL, x bigint", "rows": ["1, 10", "1, 20", "2, 5", "2, 6"]}
    run = call(script, "--tasks", 2, arguments="@parallel = 1", **table)
    assert run.code != 0 and "cannot run in parallel" in run.err and "@parallel = 0" in run.err, run.out
    assert call(script, "--tasks", 1, arguments="@parallel = 1", **table).out == "column1,column2\n10,10\n20,30\n5,35\n6,41\n"
    partitioned = "@parallel = 1, @input_data_1_partition_by_columns = N'g'"
    assert call(script, "--tasks", 2, arguments=partitioned, **table).out == "column1,column2\n10,10\n20,30\n5,5\n6,11\n"


def test_what_no_host_should_do_is_refused(call):
    run = call(ADD_ONE, "--probe", columns="x bigint", rows=["1"])
    assert run.out == "column1\n2\n", run.out
    assert "internal error" not in run.err


@pytest.mark.parametrize(("version", "flip", "out"), [
    (None, "1", "column1\n2\n"), (3, "2", "column1\n2\n"), (1, "2", "column1\n2\n"), ("x", "2", "column1\n2\n"),
    (3, "1", "Msg 39004: the extension wants interface version 3, and the host speaks 2\n"),
])  # fmt: skip
def test_interface_version_is_a_setting(call, version, flip, out):
    environment = {"TRANSSHIP_INTERFACE_VERSION": version} if version else {}
    assert call(ADD_ONE, "--flip", flip, columns="x bigint", rows=["1"], env=environment).out == out


def test_events_reach_hosts_that_take_them(call):
    environment = {"TRANSSHIP_INTERFACE_VERSION": 3}
    run = call(ADD_ONE, "--statistics", columns="x bigint", rows=["1"], env=environment)
    assert "event transship 4 0 transship" in run.err
    assert "event" not in call(ADD_ONE, "--statistics", columns="x bigint", rows=["1"]).err


def test_telemetry_counts(call):
    run = call(ADD_ONE + " max_batch_rows = 2", "--statistics", columns="x bigint", rows=["1", "2", "3"])
    counted = run.statistics
    assert counted["transship_rows"] == counted["transship_result_rows"] == 3
    assert (counted["transship_batches"], counted["transship_executions"]) == (2, 1)
    assert counted["transship_bytes_sent"] > 0 and counted["transship_wait_us"] > 0


def test_results_are_kept_for_scripts_that_ask(call):
    script = 'image = "samples:1.0" function = "largest_prime_factor" cache = true'
    rows = [str(number) for number in range(1000003, 1000053)]
    expected = call(script.replace(" cache = true", ""), columns="n bigint", rows=rows).out
    for _ in range(10):
        run = call(script, "--statistics", columns="n bigint", rows=rows)
        assert run.out == expected, run.err
        # The store starts with the first look-up, and may be late for that one.
        if run.statistics["transship_bytes_sent"] == 0:
            break
    else:
        pytest.fail("the rows are sent each time")
    run = call('image = "regress:1.0" function = "add_one_arrow" cache = true', columns="x bigint", rows=["1"])
    assert 'the key "cache" needs a function that is immutable' in run.err, run.err


def test_slow_calls_have_small_batches(call):
    # All rows in one batch would take longer than the answer to one may.
    environment = {"TRANSSHIP_BATCH_TIME_MS": 100, "TRANSSHIP_BATCH_TIMEOUT_MS": 12000}
    script = 'image = "regress:1.0" function = "wait_for"'
    run = call(script, "--statistics", columns="seconds float", rows=["0.03"] * 500, env=environment)
    assert run.out == "column1\n" + "0.03\n" * 500, run.err
    assert run.statistics["transship_batches"] > 10


def test_settings_come_from_the_language(call, host):
    job = """
CREATE EXTERNAL LANGUAGE [Container] FROM (CONTENT = N'x.zip', FILE_NAME = 'libtransship_mssql.so', PLATFORM = LINUX,
  PARAMETERS = N'allowed=samples:*;batch_rows=5', ENVIRONMENT_VARIABLES = N'{"TRANSSHIP_TRANSPORT":"json"}');
CREATE TABLE t (x bigint); INSERT INTO t VALUES (1);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "samples:1.0" function = "add_one"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "add_one"', @input_data_1 = N'SELECT x FROM t';
EXEC sp_execute_external_script @language = N'Container', @script = N'endpoint = "unix:/x" function = "f"', @input_data_1 = N'SELECT x FROM t';
"""
    run = host(job)
    assert run.out.startswith("column1\n2\n")
    assert '"regress:1.0" is not allowed' in run.err and '"endpoint:unix:/x" is not allowed' in run.err
    run = call(ADD_ONE, "--parameters", "batch_rows=0", columns="x bigint", rows=["1"])
    assert 'invalid value for setting "batch_rows"' in run.err and "Init returned -1" in run.out


def test_no_manager_is_told_with_what_usually_is_wrong(call):
    run = call(ADD_ONE, columns="x bigint", rows=["1"], env={"TRANSSHIP_SOCKET": "/nowhere/transshipd.sock"})
    assert "extensibility.datadirectories" in run.err and "/nowhere/transshipd.sock" in run.err


def test_nothing_is_allowed_that_is_not_listed(call):
    for script in [ADD_ONE, 'endpoint = "http://127.0.0.1:1" function = "f"',
                   'template = "python" function = "f" source = "def f(x: int) -> int: return x"']:  # fmt: skip
        run = call(script, columns="x bigint", rows=["1"], env={"TRANSSHIP_ALLOWED": ""})
        assert "is not allowed in this external language" in run.err and "PARAMETERS = N'allowed=" in run.err, run.err


def test_a_digest_must_be_one_of_the_name_beside_it(call):
    """Where a list permits every digest of a name."""
    regress, samples = (transship("build", ROOT / project).split()[-1] for project in ("sql/functions", "examples/samples"))

    def run(script, allowed):
        return call(f'{script} function = "add_one"', columns="x bigint", rows=["1"], env={"TRANSSHIP_ALLOWED": allowed})

    inline = 'template = "python" source = "def add_one(x: int) -> int: return x + 1"'
    for script, allowed in [
        (f'image = "samples:1.0" digest = "{regress}"', "samples:*@*"),
        (f'image = "nowhere:1.0" digest = "{regress}"', "nowhere:1.0@sha256:*"),
        (f'{inline} digest = "{regress}"', "inline:python@*"),
    ]:
        said = run(script, allowed).err
        assert "is not allowed in this external language" in said and "The digest in the script must be that" in said, said
    # Docker knows a digest behind a name only if it is that of a registry.
    said = run(f'image = "samples:1.0@{regress}"', "samples:*@*")
    assert "column1" not in said.out and ("is not allowed" in said.err or f'"samples:1.0@{regress}" does not exist' in said.err), said.err
    said = run(f'image = "regress:1.0@{regress}"', "regress:*@sha256:*")
    assert said.out == "column1\n2\n" or f'"regress:1.0@{regress}" does not exist' in said.err, said.err
    for script, allowed in [
        (f'image = "samples:1.0" digest = "{samples}"', "samples:*@*"),
        # A digest that is spelled, and a list of everything, have no name to keep to.
        (f'image = "nowhere:1.0" digest = "{regress}"', f"samples:*, {regress}"),
        (f'image = "nowhere:1.0" digest = "{regress}"', "*"),
    ]:
        assert run(script, allowed).out == "column1\n2\n", script
    # A digest of inline code lets no other code be built.
    unknown = "sha256:" + "0" * 64
    said = run(f'{inline} digest = "{unknown}"', f"inline:python@{unknown}").err
    assert "0000" in said and "column1" not in said, said


def test_each_address_of_an_endpoint_is_looked_at(call):
    allowed = {"TRANSSHIP_ALLOWED": "endpoint:http://127.0.0.1:1*"}
    for endpoint in ["http://127.0.0.1:1,http://127.0.0.2:2", "http://127.0.0.1:1, http://127.0.0.2:2"]:
        run = call(f'endpoint = "{endpoint}" function = "f"', columns="x bigint", rows=["1"], env=allowed)
        assert '"endpoint:http://127.0.0.2:2" is not allowed' in run.err, run.err
    run = call('endpoint = "http://127.0.0.1:1, http://127.0.0.1:1" function = "f"', columns="x bigint", rows=["1"], env=allowed)
    assert "is not allowed" not in run.err and "could not reach" in run.err, run.err


def test_paths_of_endpoints_do_not_leave_their_pattern(call):
    for allowed, endpoint in [
        ("endpoint:unix:/run/mine/*", "unix:/run/mine/../theirs/a.sock"),
        ("endpoint:http+unix:/run/mine/*", "http+unix:/run/mine/../theirs/a.sock"),
    ]:
        run = call(f'endpoint = "{endpoint}" function = "f"', columns="x bigint", rows=["1"], env={"TRANSSHIP_ALLOWED": allowed})
        assert f'invalid endpoint "{endpoint}"' in run.err and "could not reach" not in run.err, run.err


def test_text_of_another_code_page_is_refused_with_advice(call):
    run = call('image = "regress:1.0" function = "pass_text"', "--flip", "8", columns="v varchar(10)", rows=["'a'", "'Grüße'"])
    assert "The text is not UTF-8" in run.err and "cast the column to nvarchar" in run.err and "row 2" in run.err


def test_users_without_privileges_and_network_can_call(call, tmp_path):
    """As mssql_satellite in its namespaces: a Unix socket is all it takes."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    binaries = pathlib.Path("/tmp") / f"transship-mssql-{os.getpid()}"
    binaries.mkdir(mode=0o755)
    try:
        for path in (pathlib.Path(os.environ["EXTHOST_EXTENSION"]), pathlib.Path("target/release/exthost")):
            shutil.copy(path, binaries)
        job = binaries / "job.sql"
        job.write_text(f"CREATE TABLE t (x bigint); INSERT INTO t VALUES (1);\nEXEC sp_execute_external_script @script = N'{ADD_ONE}', @input_data_1 = N'SELECT x FROM t';")
        command = ["unshare", "--net", "--ipc", "--pid", "--fork", "setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups",
                   "--no-new-privs", str(binaries / "exthost"), "--extension", str(binaries / "libtransship_mssql.so"), str(job)]  # fmt: skip
        environment = os.environ | {"TRANSSHIP_ALLOWED": "regress:*"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd="/")
        assert run.stdout == "column1\n2\n", run.stderr
    finally:
        shutil.rmtree(binaries)


@pytest.mark.parametrize("job", ["calls", "types"])
def test_valgrind_finds_nothing(host, job):
    """With heap buffers that are overwritten and freed: neither a read too far nor one too late."""
    prefix = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=no", "--num-callers=30"]
    run = host(JOBS / f"{job}.sql", "--buffers", "heap", "--flip", "5", prefix=prefix, timeout=900)
    assert run.code == 0 and "==" not in run.err, run.err


def test_large_values_pass(host, tmp_path):
    """Far beyond a batch's bytes: each is a batch of its own."""
    rows = ["ab🚢" * 2_000_000, "", "ü" * 5_000_000]
    path = tmp_path / "large.csv"
    path.write_text("v\n" + "".join(f'"{row}"\n' for row in rows))
    run = host(f"""
CREATE TABLE t (v nvarchar(max));
BULK INSERT t FROM '{path}';
EXEC sp_execute_external_script @script = N'image = "regress:1.0" function = "pass_text"', @input_data_1 = N'SELECT v FROM t';
""")
    assert run.code == 0, run.out[-500:] + run.err
    assert run.out.split("\n")[1:4] == [rows[0], '""', rows[2]]
