"""Load: many sessions at once with every answer checked, memory that stays flat, many functions, large values, and a small query
beside a huge one.

TRANSSHIP_SOAK_S is how many seconds each number of sessions works, and TRANSSHIP_FLAT_S how many memory is watched; `make soak` sets
them. With TRANSSHIP_SOAK_OUT, a folder, what was seen of memory is left there as soak.csv.
"""

import concurrent.futures
import contextlib
import csv
import os
import pathlib
import subprocess
import tempfile
import time

import pytest
from conftest import DATABASE, RUNTIME, STATEMENT_TIMEOUT_S, Manager, Session, build, create_functions, long, numbers, wait_until

SOAK_S = float(os.environ.get("TRANSSHIP_SOAK_S", 8))
FLAT_S = float(os.environ.get("TRANSSHIP_FLAT_S", 20))
PGBENCH = pathlib.Path(os.environ["PG_CONFIG"]).with_name("pgbench")
KIB, MIB = 1 << 10, 1 << 20

# pgbench's scripts with their weights. What is wrong divides by zero, which ends the client.
MIX = {
    40: """\\set x random(1, 1000000)
SELECT 1 / (add_one(:x) = :x + 1)::int;
""",
    20: """\\set x random(1, 1000000)
SELECT 1 / (add_one_volatile(:x) = :x + 1)::int;
""",
    21: """\\set x random(1, 1000000)
SELECT 1 / (count(*) = 100 AND sum(add_one_volatile(x)) = 100 * :x + 5050)::int FROM generate_series(:x::bigint, :x + 99) x;
""",
    # Rows in their order, each with its own answer.
    10: """\\set x random(1, 1000000)
SELECT 1 / (array_agg(add_one(x)) = array_agg(x + 1))::int FROM generate_series(:x::bigint, :x + 999) x;
""",
    # A handler that fails: one error, whose row is known, and the session goes on.
    11: """\\set bad random(1, 300)
SELECT 1 / (refused(:bad) = format('row %s is bad', :bad::bigint))::int;
""",
    # What is given up in the middle.
    12: """BEGIN;
DECLARE c CURSOR FOR SELECT add_one(x) FROM generate_series(1::bigint, 100000) x;
FETCH 10 FROM c;
CLOSE c;
SELECT 1 / (add_one(1) = 2)::int;
ROLLBACK;
""",
    2: """\\set x random(1, 1000000)
SELECT 1 / (sum(add_one(x)) = 20000 * :x::bigint + 200010000)::int FROM generate_series(:x::bigint, :x + 19999) x;
""",
}
REFUSED = """
CREATE OR REPLACE FUNCTION refused(bad bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE told text;
BEGIN
  PERFORM sum(refuse(x, bad)) FROM generate_series(1::bigint, 300) x;
  RETURN 'no error';
EXCEPTION WHEN external_routine_exception THEN
  GET STACKED DIAGNOSTICS told = MESSAGE_TEXT;
  RETURN substring(told FROM 'row [0-9]+ is bad');
END
$$
"""


@pytest.fixture
def mixed(case):
    """A case in which the mixed workload's functions are there."""
    with contextlib.closing(Session()) as session:
        create_functions(session, names=["refuse"])
        session.ask(REFUSED)
    return case


class Pgbench:
    """Sessions that work through the mix."""

    def __init__(self, sessions, seconds):
        self.folder = tempfile.TemporaryDirectory()
        command = [PGBENCH, "--no-vacuum", "--protocol=prepared", f"--client={sessions}", f"--jobs={min(sessions, 2)}"]
        command += [f"--time={max(round(seconds), 1)}"]
        for weight, script in MIX.items():
            path = pathlib.Path(self.folder.name, f"{weight}.sql")
            path.write_text(script)
            command.append(f"--file={path}@{weight}")
        command.append(DATABASE)
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_S}s"
        self.bound = seconds + 2 * STATEMENT_TIMEOUT_S
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PGOPTIONS": options}
        )

    def finish(self):
        """How many queries were answered; none of them wrongly."""
        try:
            said, _ = self.process.communicate(timeout=self.bound)
        finally:
            self.process.kill()
            self.folder.cleanup()
        assert self.process.returncode == 0 and "aborted" not in said and "number of failed transactions: 0 " in said, said
        return int(next(line.split(": ")[1].split("/")[0] for line in said.splitlines() if line.startswith("number of transactions actually")))


@pytest.mark.parametrize("sessions", [1, 16, 64, 256])
def test_every_answer_is_right(mixed, sessions):
    with contextlib.closing(Session()) as session:
        # The mix's sessions, and those of the test.
        room = int(session.value("SHOW max_connections")) - 10
    assert Pgbench(min(sessions, room), SOAK_S).finish() > sessions


def anonymous(pid):
    """Bytes that a process has for itself."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * KIB
    return 0


def servers():
    """The processes of Python's servers on this machine, in containers or not."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"transship_server" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


class Watch:
    """What the processes under load hold, seen again and again."""

    def __init__(self, manager):
        self.manager, self.began, self.seen = manager, time.monotonic(), []
        # Those that were there before are of somebody else.
        self.strangers = servers() if not manager.replicas() else set()

    def look(self, session):
        backends = [row[0] for row in session.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'")]
        manager = self.manager.process.pid
        self.seen.append({
            "seconds": time.monotonic() - self.began,
            "backends_bytes": sum(map(anonymous, backends)),
            "manager_bytes": anonymous(manager),
            "servers_bytes": sum(map(anonymous, servers() - self.strangers)),
            "manager_descriptors": len(os.listdir(f"/proc/{manager}/fd")),
            "backends_descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in backends),
            "segments": len(list(self.manager.shm_dir.glob("*/segments/*"))),
        })  # fmt: skip

    def keep(self):
        if folder := os.environ.get("TRANSSHIP_SOAK_OUT"):
            with open(pathlib.Path(folder, "soak.csv"), "w", newline="") as file:
                writer = csv.DictWriter(file, self.seen[0])
                writer.writeheader()
                writer.writerows(self.seen)

    def grown(self, what, least):
        """Says what grew in the last third of the time over the third before, by more than a tenth and `least`."""
        third = len(self.seen) // 3
        before = max(seen[what] for seen in self.seen[third : 2 * third])
        after = max(seen[what] for seen in self.seen[2 * third :])
        return [f"{what}: {before} and then {after}"] if after > before * 1.1 + least else []


def test_memory_stays_flat(mixed):
    """The same sessions work all the time: what they, the manager and the servers hold stops growing."""
    watch = Watch(mixed.manager)
    load = Pgbench(8, FLAT_S)
    with contextlib.closing(Session()) as session:
        while load.process.poll() is None and time.monotonic() - watch.began < FLAT_S - 1:
            watch.look(session)
            time.sleep(max(FLAT_S / 600, 0.2))
    load.finish()
    watch.keep()
    found = watch.grown("backends_bytes", 16 * MIB) + watch.grown("manager_bytes", 8 * MIB) + watch.grown("servers_bytes", 16 * MIB)
    found += watch.grown("manager_descriptors", 8) + watch.grown("backends_descriptors", 16) + watch.grown("segments", 64)
    assert not found, found


@pytest.mark.parametrize("cycles", [100, pytest.param(2100, marks=long)])
def test_functions_come_and_go(case, cycles):
    """CREATE, call, REPLACE, call, DROP: nothing of it stays in the backend, and the statistics of 4,096 functions have room."""
    with contextlib.closing(Session()) as session:
        sizes = []
        for number in range(cycles):
            create_functions(session, suffix="_passing", names=["add_one"])
            assert session.value("SELECT add_one_passing(41)") == 42
            session.ask("CREATE OR REPLACE FUNCTION add_one_passing(x bigint) RETURNS bigint LANGUAGE container VOLATILE "
                        "AS 'image = \"faults:1.0\" function = \"add_one\"'")  # fmt: skip
            assert session.value(f"SELECT sum(add_one_passing(x)) FROM {numbers(10)}") == 65
            session.ask("DROP FUNCTION add_one_passing, add_one_passing_volatile")
            sizes.append(anonymous(session.pid))
        create_functions(session, suffix="_staying", names=["add_one"])
        assert session.value("SELECT add_one_staying(41)") == 42
        assert session.value("SELECT calls FROM transship.stat_functions WHERE name = 'add_one_staying'") == 1
        session.ask("DROP FUNCTION add_one_staying, add_one_staying_volatile")
        assert sizes[-1] < sizes[cycles // 2] + 8 * MIB, (sizes[cycles // 2], sizes[-1])


@pytest.mark.parametrize(("images", "functions"), [(3, 60), pytest.param(50, 1000, marks=long)])
def test_many_functions_of_many_images(case, images, functions):
    with contextlib.closing(Session()) as session:
        names = [build(f"faults-many-{number}", mode=f"# {number}") for number in range(images)]
        for number in range(functions):
            session.ask(f"CREATE OR REPLACE FUNCTION many_{number}(x bigint) RETURNS bigint LANGUAGE container VOLATILE "
                        f"AS 'image = \"{names[number % images]}\" function = \"add_one\"'", within=40)  # fmt: skip
        for number in range(functions):
            assert session.value(f"SELECT many_{number}({number})", within=60) == number + 1
        seen = session.value("SELECT count(*) FROM transship.stat_functions WHERE name LIKE 'many\\_%' AND calls = 1")
        assert seen == functions
        # In one query, as many as a few images allow.
        first = [f"many_{number}(x)" for number in range(20)]
        assert session.ask(f"SELECT {' + '.join(first)} FROM {numbers(3)}", within=60) == [(20 * (x + 1),) for x in (1, 2, 3)]
        for number in range(functions):
            session.ask(f"DROP FUNCTION many_{number}")


@long
def test_one_value_of_512_megabytes(case):
    """The largest values that PostgreSQL takes are of a gigabyte."""
    image = build("faults-wide", limits="{ memory_mb = 6000, pids = 64 }")
    with contextlib.closing(Session()) as session:
        session.ask(f"CREATE OR REPLACE FUNCTION wide(t bytea) RETURNS bytea LANGUAGE container IMMUTABLE STRICT "
                    f"AS 'image = \"{image}\" function = \"same\"'")  # fmt: skip
        session.set(transship__max_reply_size="1GB")
        # A number for each megabyte, so that nothing can be in another's place.
        session.ask("CREATE TEMPORARY TABLE large AS SELECT string_agg(decode(repeat(md5(i::text), 32768), 'hex'), '' ORDER BY i) AS b "
                    "FROM generate_series(1, 1024) i")  # fmt: skip
        assert session.value("SELECT length(b) FROM large") == 512 * MIB
        assert session.value("SELECT wide(b) = b FROM large", within=STATEMENT_TIMEOUT_S)
        session.ask("DROP FUNCTION wide")


def test_a_huge_query_does_not_starve_a_small_one(case):
    """Small queries are answered while a huge one runs, on the same function and the same replicas."""
    huge, small = case.session(), case.session()
    rows = 4_000_000
    running = huge.start(f"SELECT count(*), sum(add_one_volatile(x)) FROM {numbers(rows)}")
    answered = 0
    while running.is_running():
        assert small.value(f"SELECT add_one_volatile({answered})") == answered + 1
        answered += 1
    assert running.answer(STATEMENT_TIMEOUT_S) == [(rows, rows * (rows + 3) // 2)]
    # Each took its turn, and did not wait for the end.
    assert answered >= 20


def test_sessions_that_idle_in_transactions_starve_nobody(case):
    """Each holds a lease and a connection for as long as its transaction is open."""
    idle = [case.session(is_warm=False) for _ in range(60)]

    def begin(session):
        session.ask("BEGIN")
        return session.value("SELECT add_one_volatile(1)", within=40)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(begin, idle)) == [2] * len(idle)
    with contextlib.closing(Session()) as session:
        assert session.value(f"SELECT sum(add_one_volatile(x)) FROM {numbers(1000)}") == 501500
    for session in idle:
        session.ask("COMMIT")
    wait_until("their leases have ended", lambda: not any(each["leases"] for each in case.manager.replicas()))


@pytest.mark.skipif(RUNTIME != "docker", reason="a process has no container")
def test_the_limit_over_all_containers_holds(case, own_folder):
    """More images than containers may run: those that nobody uses give way, and at no time are there more."""
    images = [build(f"faults-many-{number}", mode=f"# {number}") for number in range(4)]
    manager = Manager("--max-containers=2", folder=own_folder)
    manager.start()
    most = 0
    try:
        with contextlib.closing(Session(**{"transship.manager_socket": manager.socket})) as session:
            for number, image in enumerate(images):
                session.ask(f"CREATE OR REPLACE FUNCTION bounded_{number}(x bigint) RETURNS bigint LANGUAGE container VOLATILE "
                            f"AS 'image = \"{image}\" function = \"add_one\"'", within=40)  # fmt: skip
            for turn in range(8):
                number = turn % len(images)
                assert session.value(f"SELECT bounded_{number}({turn})", within=40) == turn + 1
                most = max(most, len(manager.containers()))
            for number in range(len(images)):
                session.ask(f"DROP FUNCTION bounded_{number}")
    finally:
        manager.end()
        manager.shm_dir.rmdir()
    assert 1 <= most <= 2
