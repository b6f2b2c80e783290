"""The test host itself: drives an extension in C, and sees whatever breaks the API's contract."""

import pathlib
import subprocess

import pytest

SOURCE = pathlib.Path(__file__).with_name("plain_extension.c")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.so"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


ROWS = ["1.5", "NULL", "-2.5"]


def test_an_extension_in_c_works(call, plain):
    run = call("is right", columns="x float", rows=ROWS, extension=plain)
    assert (run.out, run.err) == ("column1\n1.5\n\n-2.5\n", "")
    arguments = "@params = N'@r_rowsPerRead int', @r_rowsPerRead = 2"
    assert call("is right", columns="x float", rows=ROWS, arguments=arguments, extension=plain).out == run.out
    for flip in (2, 3, 4, 5, 6, 7, 9, 10, 11):
        assert call("is right", "--flip", flip, columns="x float", rows=ROWS, extension=plain).out == run.out


@pytest.mark.parametrize(("what", "said"), [
    ("fails", "Execute returned -1"), ("crashes", "the process died of SIGABRT"), ("gives NaN", "a float that is not finite"),
    ("reads too far", "the process died of SIGSEGV"), ("gives a strange length", "a length of -3"),
    ("gives a strange type", "has the type code 4711"), ("gives a wrong size", "has a size of 4 instead of 8"),
    ("says NOT NULL", "row 2: NULL in a column that is NOT NULL"), ("says maybe NULL", "has a nullability of 2"),
    ("is text", "4 bytes in a column of 3"), ("is text of no size", "has a size of 0"), ("gives no values", "there are no values"),
    ("gives no lengths", "there are no lengths"), ("is not aligned", "the values are not aligned"),
    ("changes its mind", "GetResults gave something else the second time"),
    ("does not say the number of rows", "the number of rows was not written"),
    ("does not say the number of columns", "GetResultColumn returned -1"),
])  # fmt: skip
def test_what_breaks_the_contract_is_seen(call, plain, what, said):
    run = call(what, columns="x float", rows=ROWS, extension=plain)
    assert said in run.out and run.code == 1


def test_reading_the_input_after_execute_is_seen(call, plain):
    assert call("reads too late", columns="x float", rows=ROWS, extension=plain).code == 0
    assert "SIGSEGV" in call("reads too late", "--flip", "5", columns="x float", rows=ROWS, extension=plain).out


def test_a_schema_that_changes_is_seen(call, plain):
    arguments = "@params = N'@r_rowsPerRead int', @r_rowsPerRead = 2"
    run = call("drifts", columns="x float", rows=ROWS, arguments=arguments, extension=plain)
    assert "the result schema changed" in run.out


@pytest.mark.parametrize(("what", "said"), [
    ("is right", "n\n42\n"), ("gives a long parameter", "a length of 8 for a value of fixed size"),
    ("gives a parameter without value", "a NULL pointer to a value that is not NULL"),
])  # fmt: skip
def test_output_parameters_are_checked(host, plain, what, said):
    run = host(f"""
CREATE TABLE t (x float);
INSERT INTO t VALUES (1);
DECLARE @n int = 41;
EXEC sp_execute_external_script @script = N'{what}', @input_data_1 = N'SELECT x FROM t', @params = N'@p int OUTPUT', @p = @n OUTPUT;
SELECT @n;
""", extension=plain)  # fmt: skip
    assert said in run.out


def test_a_script_that_hangs_is_cancelled(call, plain):
    assert call("hangs", "--kill-after-ms", 200, columns="x float", rows=ROWS, extension=plain).out.endswith("the query was cancelled\n")


def test_what_is_no_extension_is_refused(call, tmp_path):
    for content in (b"", b"\x7fELF nonsense"):
        path = tmp_path / "no.so"
        path.write_bytes(content)
        assert "could not load" in call("x", extension=path).out
    empty = tmp_path / "empty.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", empty, "/dev/null"], check=True)
    assert "does not export GetInterfaceVersion" in call("x", extension=empty).out
