"""What hosts may send at the edges of the API, and what must come of it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT

BARE_HOST = pathlib.Path(__file__).with_name("bare_host.py")


def bare(case, **options):
    """Runs a case of the bare host; what it found."""
    command = [sys.executable, str(BARE_HOST), os.environ["EXTHOST_EXTENSION"], case]
    options = {"stderr": subprocess.PIPE, "env": os.environ | {"TRANSSHIP_ALLOWED": "*"}} | options
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, cwd=ROOT, **options)
    assert run.returncode == 0, (run.returncode, run.stderr)
    return json.loads(run.stdout)


def test_bits_that_pass_through_are_numbers():
    assert bare("bits") == [0, 0, [0, 1, 0, 1]]


def test_results_of_the_call_before_are_gone_after_refused_buffers():
    first, before, second, after = bare("refused_buffers")
    assert (first, before) == ([0, 1], [0, [8, 0, 0, 0, 0, 0, 0, 0]])
    assert (second, after) == ([-1, 0], [-1, None])


def test_a_text_parameter_of_odd_length_is_refused():
    assert bare("odd_length") == [-1, 0, 0]


def test_a_decimal_parameter_without_precision_is_a_number():
    first, code, value = bare("decimal_without_precision")
    assert (first, code, value) == ([0, 1], 0, [38, 10, 1, *(7 * 10**10).to_bytes(16, "little")])


def test_counter_names_end_with_nul():
    code, pairs = bare("counter_names")
    assert code == 0 and len(pairs) == 10
    assert all(one == other and one.startswith("transship_") for one, other in pairs)


def test_a_host_whose_stderr_nobody_reads_lives_on():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert bare("no_reader", stderr=writer) == [[-1, -1, -1], []]
    finally:
        os.close(writer)


@pytest.mark.parametrize(("length", "flip"), [(3000, None), (5000, None), (3000, "6"), (5000, "6")])
def test_text_outputs_have_the_length_of_their_parameter(host, length, flip):
    run = host(f"""
DECLARE @o nvarchar(3000);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "pass_text"',
  @params = N'@arg1 nvarchar(max), @o nvarchar(3000) OUTPUT', @arg1 = N'{"x" * length}', @o = @o OUTPUT;
SELECT @o;
""", *(["--flip", flip] if flip else []))  # fmt: skip
    if length <= 3000:
        assert run.out.endswith("x" * length + "\n"), run.err
    else:
        assert 'parameter "@o" cannot take its value' in run.err and "too many for nvarchar" in run.err, run.out


def test_a_decimal_output_is_not_bound_by_the_usual_digits(host):
    number = "1" + "0" * 37
    run = host(f"""
DECLARE @o decimal(38, 0);
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "echo_numeric"',
  @params = N'@arg1 decimal(38, 0), @o decimal(38, 0) OUTPUT', @arg1 = {number}, @o = @o OUTPUT;
SELECT @o;
""")  # fmt: skip
    assert run.out.endswith(f"{number}\n"), run.err


def test_small_numbers_have_digits_as_text(host):
    script = 'image = "regress:1.0" function = "echo_numeric" result_columns = ["nvarchar(60)"]'
    run = host(f"""
CREATE TABLE t (x decimal(38, 30)); INSERT INTO t VALUES (-0.0000000001); INSERT INTO t VALUES (12.5);
EXEC sp_execute_external_script @language = N'Container', @script = N'{script}', @input_data_1 = N'SELECT x FROM t';
""")
    assert run.out.splitlines()[1].startswith("-0.0000000001") and run.out.splitlines()[2].startswith("12.5"), run.out
    assert "E" not in run.out and "e-" not in run.out


def test_a_value_of_the_wrong_type_names_its_key(call):
    run = call("image = 5", columns="x bigint", rows=["1"])
    assert 'in the value of key "image"' in run.err


# Where a transport repeats it in every row, batches have few rows.
@pytest.mark.parametrize(("transport", "rows"), [("auto", 150), ("flight", 150), ("json", 40)])
def test_a_model_of_many_megabytes_goes_to_every_row(host, tmp_path, transport, rows):
    size = 17_000_000
    model = "0x" + "07" * size
    inserts = "".join(f"INSERT INTO t VALUES ({row});\n" for row in range(rows))
    job = tmp_path / "model.sql"
    job.write_text(f"""
CREATE TABLE t (x bigint);
{inserts}
EXEC sp_execute_external_script @language = N'Container', @script = N'image = "regress:1.0" function = "byte_of" transport = "{transport}"',
  @input_data_1 = N'SELECT x FROM t', @params = N'@bytes varbinary(max)', @bytes = {model};
""")
    run = host(job, timeout=600)
    assert run.out == "column1\n" + "7\n" * rows, run.err[-1000:]


def test_sockets_that_the_sandbox_hides_are_reached(call):
    if os.getuid() != 0:
        pytest.skip("only root can hide a folder")
    # As the sandbox does, which shows what is among extensibility.datadirectories: the manager opens the folders.
    hidden = os.environ["TRANSSHIP_RUN_DIR"]
    script = f'mount --make-rprivate / && mount -t tmpfs none {hidden} && mount -t tmpfs none /dev/shm && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    run = call('image = "regress:1.0" function = "add_one"', columns="x bigint", rows=["1"], prefix=prefix)
    assert run.out == "column1\n2\n", run.err


def test_a_reply_that_is_larger_than_it_may_be_is_an_error(call):
    text = {"columns": "x nvarchar(max)", "rows": ["N'" + "x" * 100_000 + "'"]}
    script = 'image = "regress:1.0" function = "shout"'
    assert "X!" in call(script, **text).out
    run = call(script, **text, env={"TRANSSHIP_MAX_REPLY_SIZE": 65536})
    assert run.code != 0 and "is too large" in run.err and "setting max_reply_size" in run.err, run.err
