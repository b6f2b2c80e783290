"""CREATE EXTERNAL LIBRARY: a zip with a UDF project becomes functions that scripts call."""

import concurrent.futures
import json
import os
import stat
import time
import zipfile

import pytest

MANIFEST = """
name = "%s"
template = "python"
files = ["table.json"]
[[functions]]
name = "times"
strict = true
"""

HANDLER = """
import json, pathlib
FACTOR = json.loads((pathlib.Path(__file__).parent / "table.json").read_text())

def times(x: int) -> int:
    return FACTOR * x
"""

TABLE = "CREATE TABLE t (x bigint); INSERT INTO t VALUES (2), (NULL);\n"


def use(name):
    return f"EXEC sp_execute_external_script @script = N'library = \"{name}\" function = \"times\"', @input_data_1 = N'SELECT x FROM t';\n"


@pytest.fixture
def archive(tmp_path):
    def write(name="lib.zip", factor=3, project="times_lib", **files):
        path = tmp_path / name
        contents = {"transship.toml": MANIFEST % project, "handler.py": HANDLER, "table.json": json.dumps(factor)} | files
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
            for inside, text in contents.items():
                if text is not None:
                    target.writestr(inside, text)
        return path

    return write


def create(path, name="lib", verb="CREATE"):
    source = "FROM" if verb == "CREATE" else "SET"
    return f"{verb} EXTERNAL LIBRARY [{name}] {source} (CONTENT = N'{path}', PLATFORM = LINUX) WITH (LANGUAGE = 'Container');\n"


def test_a_library_is_installed_replaced_and_dropped(host, archive, tmp_path):
    libraries = tmp_path / "public/folder"
    flags = ("--public-libraries", libraries)
    run = host(TABLE + create(archive(factor=3)) + use("lib"), *flags)
    assert run.out == "column1\n6\n\n", run.err
    # Another process finds it; an altered one takes its place.
    assert host(TABLE + use("lib"), *flags).out == "column1\n6\n\n"
    assert host(TABLE + create(archive(factor=5), verb="ALTER") + use("lib"), *flags).out == "column1\n10\n\n"
    assert sorted(path.name for path in libraries.iterdir()) == [".lock-transship-lib", "transship-lib"]
    # One that cannot be built leaves the old one as it is.
    run = host(TABLE + create(archive(factor=7, **{"handler.py": "def other(): pass"}), verb="ALTER") + use("lib"), *flags)
    assert "Msg 39021" in run.out and run.out.endswith("column1\n10\n\n")
    run = host(TABLE + "DROP EXTERNAL LIBRARY [lib];\nDROP EXTERNAL LIBRARY [lib];\n" + use("lib"), *flags)
    assert 'external library "lib" is not installed' in run.err
    assert [path.name for path in libraries.iterdir()] == [".lock-transship-lib"]


def test_names_of_any_kind_are_kept_apart(host, archive, tmp_path):
    flags = ("--public-libraries", tmp_path / "public")
    names = ["a/../b", "a b", "ü" * 128, "-", "A"]
    job = TABLE
    for factor, name in enumerate(names, 2):
        job += create(archive(f"{factor}.zip", factor), name) + use(name)
    assert host(job, *flags).out == "".join(f"column1\n{2 * factor}\n\n" for factor, _ in enumerate(names, 2))


def test_the_users_own_library_comes_first(host, archive, tmp_path):
    own, everybodys = tmp_path / "own", tmp_path / "everybodys"
    host(create(archive(factor=3)), "--public-libraries", everybodys)
    host(create(archive(factor=4)), "--public-libraries", own)
    flags = ("--public-libraries", everybodys, "--private-libraries")
    assert host(TABLE + use("lib"), *flags, own).out == "column1\n8\n\n"
    assert host(TABLE + use("lib"), *flags, tmp_path / "empty").out == "column1\n6\n\n"


def test_a_library_takes_no_other_images_name(host, archive, tmp_path):
    run = host(TABLE + create(archive(project="regress")) + use("lib"), "--public-libraries", tmp_path / "public")
    assert run.out == "column1\n6\n\n"
    record = json.loads((tmp_path / "public/transship-lib/library.json").read_text())
    assert record["image"].startswith("transship-library/regress:")


def test_two_processes_may_install_at_once(host, archive, tmp_path):
    flags = ("--public-libraries", tmp_path / "public")
    jobs = []
    for number in range(4):
        path = tmp_path / f"{number}.sql"
        path.write_text(TABLE + create(archive(f"{number}.zip", 3)) + use("lib"))
        jobs.append(path)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda path: host(path, *flags), jobs))
    assert [run.out for run in runs] == ["column1\n6\n\n"] * 4


def test_a_lost_image_is_built_again(host, archive, tmp_path):
    flags = ("--public-libraries", tmp_path / "public")
    host(create(archive(factor=11)), *flags)
    record = tmp_path / "public/transship-lib/library.json"
    installed = json.loads(record.read_text())
    record.write_text(json.dumps(installed | {"digest": "sha256:" + "0" * 64}))
    assert host(TABLE + use("lib"), *flags).out == "column1\n22\n\n"


def test_what_a_killed_installation_has_left_goes_with_the_next(host, archive, tmp_path):
    libraries = tmp_path / "public"
    left, others = (libraries / f".staged-transship-{name}-Aa0Aa0Aa0Aa0" for name in ("lib", "lib-other"))
    for folder in (left, others):
        (folder / "project").mkdir(parents=True)
    # Nothing is written for a library that never was.
    assert host("DROP EXTERNAL LIBRARY [lib];", "--public-libraries", libraries).code == 0
    assert sorted(libraries.iterdir()) == sorted([left, others])
    assert host(TABLE + create(archive()) + use("lib"), "--public-libraries", libraries).out == "column1\n6\n\n"
    assert not left.exists() and others.exists()


def test_the_last_installation_of_a_name_to_begin_stays(host, archive, tmp_path):
    flags = ("--public-libraries", tmp_path / "public")
    slow = f"import time\ntime.sleep(5)  # {time.time_ns()}\n{HANDLER}"
    for later, expected in [(create(archive("later.zip", factor=5), verb="ALTER"), "column1\n10\n\n"), ("DROP EXTERNAL LIBRARY [lib];\n", None)]:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            building = pool.submit(host, create(archive("slow.zip", factor=3, **{"handler.py": slow})), *flags)
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob("public/.staged-*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            host(later, *flags)
            assert building.result().code == 0
        run = host(TABLE + use("lib"), *flags)
        assert run.out == expected if expected else "is not installed" in run.err, run.err
        slow += " "


def test_an_installation_waits_for_no_other_that_is_being_built(host, archive, tmp_path):
    flags = ("--public-libraries", tmp_path / "public")
    # Loaded once when it is built. What was built before would not be built again.
    slow = f"import time\ntime.sleep(20)  # {time.time_ns()}\n{HANDLER}"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        building = pool.submit(host, create(archive("slow.zip", **{"handler.py": slow}), "slow"), *flags)
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("public/.staged-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert host(TABLE + create(archive(factor=4)) + use("lib"), *flags).out == "column1\n8\n\n"
        assert not building.done()
        assert building.result().code == 0
    assert (tmp_path / "public/transship-slow/library.json").exists()


def evil(path, info, content=b"x"):
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(info, content)
    return path


def link():
    info = zipfile.ZipInfo("handler.py")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    info.create_system = 3
    return info


@pytest.mark.parametrize(("make", "said"), [
    (lambda path, archive: evil(path, "../../escaped"), 'The path "../../escaped" leaves the project.'),
    (lambda path, archive: evil(path, "/tmp/escaped"), "leaves the project"),
    (lambda path, archive: evil(path, link(), b"/etc/passwd"), "is neither a file nor a folder"),
    (lambda path, archive: path.write_bytes(b"#!/bin/sh\n") and path, "It is not a zip that can be read"),
    (lambda path, archive: path.write_bytes(b"") or path, "It is not a zip that can be read"),
    (lambda path, archive: archive(**{"a/" * 1000 + "x": ""}), "A path in it is deeper than 32, or longer than 1024 bytes."),
    (lambda path, archive: archive(**{f"{i}/" + "a/" * 20 + "x": "" for i in range(500)}), "It has more than 10000 files and folders."),
    (lambda path, archive: archive(**{"bomb": "0" * (80 << 20)}), "It unpacks to more than 67108864 bytes."),
    (lambda path, archive: archive(**{"transship.toml": None}), "It has no readable transship.toml at its root."),
    (lambda path, archive: archive(**{"transship.toml": "name = 'x'"}), "transship.toml is not valid: missing field"),
    (lambda path, archive: archive(**{"transship.toml": "\xff"}), "transship.toml is not valid"),
    (lambda path, archive: archive(**{"table.json": None}), 'transship.toml names "table.json", which is not in it.'),
    (lambda path, archive: archive(**{"transship.toml": MANIFEST % "x" + "[limits]\nnetwork = true"}), "may not ask for a network"),
    (lambda path, archive: archive(**{"transship.toml": (MANIFEST % "x").replace("python", "cobol")}), 'there is no template "cobol"'),
    (lambda path, archive: archive(**{"handler.py": "def times(: pass"}), "SyntaxError"),
])  # fmt: skip
def test_a_bad_archive_is_refused_with_a_message(host, archive, tmp_path, make, said):
    path = make(tmp_path / "evil.zip", archive)
    libraries = tmp_path / "public"
    run = host(create(path), "--public-libraries", libraries)
    assert run.code == 1 and run.out.startswith("Msg 39021: ") and said in run.out, run.out
    assert not any(entry.name.startswith("transship-") for entry in libraries.iterdir())
    assert [entry for entry in libraries.iterdir() if entry.name != ".lock-transship-lib"] == []
    assert not os.path.exists("/tmp/escaped")


def test_a_library_that_scripts_may_not_name_is_not_installed(host, archive, tmp_path):
    libraries = tmp_path / "public"
    handler = f"raise Exception('it ran')\n{HANDLER}"
    for allowed in ["", "library:other, regress:*", "inline:python"]:
        run = host(create(archive(**{"handler.py": handler})), "--public-libraries", libraries, env={"TRANSSHIP_ALLOWED": allowed})
        assert run.out.startswith('Msg 39021: "library:lib" is not allowed in this external language'), run.out
        assert "it ran" not in run.out + run.err and not libraries.exists()
    run = host(TABLE + create(archive()) + use("lib"), "--public-libraries", libraries, env={"TRANSSHIP_ALLOWED": "library:l*"})
    assert run.out == "column1\n6\n\n", run.err
    # One that is no longer listed goes all the same.
    host("DROP EXTERNAL LIBRARY [lib];", "--public-libraries", libraries, env={"TRANSSHIP_ALLOWED": ""})
    assert [path.name for path in libraries.iterdir()] == [".lock-transship-lib"]


def test_no_manager_is_told_to_the_dba(host, archive, tmp_path):
    run = host(create(archive()), "--public-libraries", tmp_path / "public", env={"TRANSSHIP_SOCKET": "/nowhere/x.sock"})
    assert run.out.startswith('Msg 39021: could not reach the container manager at "/nowhere/x.sock"')
