"""Every job against its expected output, whichever way the API's open questions are read.

TRANSSHIP_WRITE_EXPECTED=1 writes what came out instead.
"""

import os

import pytest

from conftest import EXPECTED, JOBS, ROOT, normalize

NAMES = sorted(path.stem for path in JOBS.glob("*.sql"))


def compare(run, name):
    text = normalize(run.out + run.err)
    path = EXPECTED / f"{name}.out"
    if os.environ.get("TRANSSHIP_WRITE_EXPECTED"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_job(host, name):
    compare(host(JOBS / f"{name}.sql"), name)


# 1 is the interface version, which is 2 anyway; 7 takes no SQL_C_GUID, for which there is a setting; 8 is the code page,
# in which the jobs' varchar columns are the same; 9 and 10 are about the end.
@pytest.mark.parametrize("flip", ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "1,2,3,4,5,6,7,8,9,10,11,12"])
@pytest.mark.parametrize("name", NAMES)
def test_open_questions_change_nothing(host, name, flip):
    environment = {"TRANSSHIP_GUID": "char"} if "7" in flip.split(",") else {}
    compare(host(JOBS / f"{name}.sql", "--flip", flip, env=environment), name)


def test_the_documented_example_runs(host):
    run = host(ROOT / "examples/samples/mssql.sql")
    assert run.out == "id,shouted\n1,GRÖSSE!\n2,\n3,VASA!\ncolumn1\n6857\nfactor\n6857\n", run.err


def test_json_gives_the_same_values(host):
    compare(host(JOBS / "types.sql", env={"TRANSSHIP_TRANSPORT": "json"}), "types")
