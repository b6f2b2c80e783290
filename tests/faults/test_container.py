"""Containers that end, hang, hoard and misspeak."""

import itertools
import shutil
import time

import pytest
from conftest import RUNTIME, Manager, Stopwatch, answers, build, create_functions, docker_only, long, query, run, wait_until

LOST = r'connection to the container of function "{}" was lost'
# Each test calls `tell` with values that no other has, nor one of an earlier run, whose logs are kept.
FIRST = itertools.count(int(time.time()) * 1_000_000, 1_000_000)


def lost(name):
    return LOST.format(name)


# Calls of 10 ms that take far longer than it takes to end their container.
MANY = 750


def kill_in_mid_query(case, running, after=0.4):
    name = case.manager.leased()
    time.sleep(after)
    assert running.is_running()
    case.manager.kill_replica(name)
    return name


@pytest.mark.parametrize("transport", ["auto", "flight", "json"])
def test_killed_volatile(case, transport):
    """A VOLATILE function's batch is never run twice: one error, which names function, image and fate."""
    session, first = case.session(), next(FIRST)
    session.set(transship__transport=transport)
    running = session.start(query("tell_volatile(x, 10)", MANY, first))
    kill_in_mid_query(case, running)
    said = running.failure("08006", lost("tell"))
    fate = "exited with status 137" if RUNTIME == "docker" else "was killed by signal 9"
    assert said.message_detail == f'The container of image "faults:1.0" {fate}.'
    assert said.context.startswith('container function "tell_volatile", row')
    # Asked at once, so that another attempt would have had its time.
    case.check(session)
    time.sleep(1)
    calls = case.manager.calls()
    assert all(calls[x] <= 1 for x in range(first, first + MANY))
    assert 0 < sum(calls[x] for x in range(first, first + MANY)) < MANY


@pytest.mark.parametrize("transport", ["auto", "flight", "json"])
def test_killed_immutable(case, transport):
    """Others are answered by another replica, each row once as far as the query can see."""
    session = case.session()
    session.set(transship__transport=transport)
    running = session.start(query("nap(x, 10)", MANY))
    kill_in_mid_query(case, running)
    assert running.answer(within=60) == answers(MANY)


@pytest.mark.parametrize("transport", ["auto", "flight"])
def test_killed_with_tables(case, transport):
    """The replica that goes on is given the tables that the first one had."""
    session = case.session()
    session.set(transship__transport=transport)
    rows = "SELECT x, x + 1 AS y FROM generate_series(1, 1000::bigint) x"
    session.ask(f"SELECT transship.share('faults_rows', '{rows}', 'x')")
    body = 'image = "faults:1.0" function = "look_up" tables = ["faults_rows"]'
    arguments = "x bigint, ms bigint"
    session.ask(f"CREATE OR REPLACE FUNCTION look_up({arguments}) RETURNS bigint LANGUAGE container STABLE COST 1000 AS '{body}'")
    running = session.start(query("look_up(x, 10)", MANY))
    kill_in_mid_query(case, running)
    assert running.answer(within=60) == answers(MANY)
    session.ask("SELECT transship.unshare('faults_rows')")


def test_killed_before_the_groups_are_forgotten(case):
    """Who has all results of a GROUP BY can commit, whatever becomes of the container that made them."""
    session = case.session()
    for statement in (
        "CREATE OR REPLACE FUNCTION total_step(internal, bigint) RETURNS internal LANGUAGE container AS 'image = \"faults:1.0\" function = \"total\"'",
        "CREATE OR REPLACE FUNCTION total_final(internal) RETURNS bigint LANGUAGE container AS 'image = \"faults:1.0\" function = \"total\"'",
        "CREATE OR REPLACE AGGREGATE total(bigint) (SFUNC = total_step, STYPE = internal, FINALFUNC = total_final)",
        "SET enable_sort = off",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT x / 3 AS g, total(x) FROM generate_series(0, 8999::bigint) x GROUP BY 1",
    ):
        session.ask(statement)
    found = dict(session.ask("FETCH ALL FROM c"))
    assert found == {g: 9 * g + 3 for g in range(3000)}
    case.manager.kill_replica(case.manager.leased())
    time.sleep(0.5)
    session.ask("COMMIT")


def test_killed_each_time(case):
    """The retries have a budget."""
    session = case.session()
    watch = Stopwatch()
    said = session.fail(query("leave(x, 500)", 1000), "08006", lost("leave"))
    assert 'The container of image "faults:1.0" exited with status 9.' == said.message_detail
    assert watch.seconds() < 15
    errors, retries = session.ask("SELECT errors, retries FROM transship.stat_functions WHERE name = 'leave'")[0]
    assert errors >= 1 and retries >= 2


def test_killed_under_many(case):
    """All sessions of one replica lose it, and all that may go on with another."""
    sessions = [case.session(is_warm=False) for _ in range(6)]
    running = [session.start(query("nap(x, 10)", MANY)) for session in sessions]
    for _ in range(2):
        kill_in_mid_query(case, running[0], after=0.2)
        time.sleep(0.3)
    for each in running:
        assert each.answer(within=60) == answers(MANY)


@docker_only
@pytest.mark.parametrize("volatility", ["", "_volatile"])
def test_out_of_memory(case, volatility):
    session = case.session()
    said = session.fail(query(f"hog{volatility}(x, 50)", 100), "08006", lost("hog"), within=40)
    assert said.message_detail == 'The container of image "faults:1.0" was killed because it ran out of memory.'
    assert "raise its memory limit" in said.message_hint


@docker_only
def test_paused(case):
    """A container that stands still is a timeout, and is replaced."""
    session = case.session()
    session.set(transship__batch_timeout="1500ms")
    running = session.start(query("nap_volatile(x, 20)", MANY))
    name = case.manager.leased()
    run("docker", "pause", name)
    said = running.failure("08006", r'container function "nap" did not answer within 1500 ms', within=10)
    assert "transship.batch_timeout" in said.message_hint
    case.check(session)
    wait_until("the paused one is stopped", lambda: name not in case.manager.containers())


@docker_only
def test_paused_and_resumed(case):
    """One that goes on in time has lost nothing."""
    session = case.session()
    running = session.start(query("nap_volatile(x, 10)", MANY))
    name = case.manager.leased()
    run("docker", "pause", name)
    time.sleep(3.5)
    run("docker", "unpause", name)
    assert running.answer(within=60) == answers(MANY)


def test_slow(case):
    """A slow one is waited for until the batch's own deadline, and stays."""
    session = case.session()
    session.set(transship__batch_timeout="500ms")
    watch = Stopwatch()
    session.fail(query("nap(x, 400)", 100), "08006", r'container function "nap" did not answer within 500 ms', within=5)
    assert watch.seconds() < 3
    session.fail("SELECT nap(1, 5000)", "08006", r'container function "nap" did not answer within 500 ms', within=5)


def test_answers_after_cancellation(case):
    """What comes late goes to nobody."""
    session = case.session()
    for call in ("nap_volatile(x, 300)", "nap(x, 300)"):
        for first in (1, 1000):
            # Long enough for the statement that sets it back.
            session.set(statement_timeout="1500ms")
            session.fail(query(call, 20, first), "57014", "canceling statement due to statement timeout", within=10)
            session.set(statement_timeout="50s")
            assert session.ask(query("nap_volatile(x, 1)", 50, 77), within=10) == answers(50, 77)


def test_cancelled_while_another_works(case):
    first, second = case.session(), case.session()
    running = second.start(query("nap_volatile(x, 10)", 200))
    cancelled = first.start(query("nap_volatile(x, 10)", 200))
    time.sleep(0.5)
    first.connection.cancel()
    cancelled.failure("57014", "canceling statement due to user request", within=5)
    assert running.answer() == answers(200)


@pytest.mark.parametrize("transport", ["auto", pytest.param("flight", marks=long), "json"])
def test_closes_the_stream_early(case, transport):
    session = case.session()
    session.set(transship__transport=transport)
    said = session.fail(query("hang_up_volatile(x, 50)", 100), "08006", lost("hang_up"))
    assert said.context.startswith('container function "hang_up_volatile", row')
    case.check(session)
    # The row does so wherever it is sent.
    session.fail(query("hang_up(x, 50)", 100), "08006", lost("hang_up"))


@docker_only
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run/transship", "/run/transship-segments"])
def test_fills_its_disk(case, folder):
    """Each folder that it may write has an end, which it is told; the replica goes on, and so do those who share the folder."""
    session = case.session()
    said = session.fail(
        query(f"fill_volatile(x, 50, '{folder}')", 100),
        "38000",
        r'container function "fill" raised an exception: OSError: \[Errno 28\] No space left on device',
    )
    assert said.context == 'container function "fill_volatile", row 50'
    for transport in ("auto", "shm", "flight"):
        session.set(transship__transport=transport)
        assert session.ask(query("add_one(x)", 100_000)) == answers(100_000)
    # What it filled stays until it ends, and is its own.
    names = [each["name"] for each in case.manager.replicas()]
    for name in names:
        case.manager.kill_replica(name)


@docker_only
@pytest.mark.parametrize("transport", ["auto", "flight"])
def test_forks_without_end(case, transport):
    """The limit of processes ends it, as an exception of the row."""
    session = case.session()
    session.set(transship__transport=transport)
    said = session.fail(
        query("fork_volatile(x, 50)", 100),
        "38000",
        r'container function "fork" raised an exception: BlockingIOError: \[Errno 11\] Resource temporarily unavailable',
    )
    assert said.context == 'container function "fork_volatile", row 50'
    # Others are served: by this replica, which has no more processes, or by another.
    other = case.session(is_warm=False)
    assert other.ask(query("add_one(x)", 1000), within=40) == answers(1000)
    for each in case.manager.replicas():
        case.manager.kill_replica(each["name"])


@pytest.fixture(scope="module")
def bad_starts(manager, database):
    """Images whose servers do not start well, with a function of each."""
    from conftest import Session

    images = {mode: build(f"faults-{mode}", mode) for mode in ("exit", "silent", "crash")}
    session = Session()
    for mode, image in images.items():
        create_functions(session, image, f"_{mode}", ["add_one", "nap"])
    session.close()


def test_exits_at_start(case, bad_starts):
    session = case.session()
    watch = Stopwatch()
    said = session.fail(
        query("add_one_exit_volatile(x)", 10), "08006", r'could not start a container of image "faults-exit:1.0"'
    )
    assert "the container exited with status 1" in said.message_detail
    assert "the handler says goodbye" in said.message_detail
    # What is not VOLATILE is tried again, and no more than that.
    session.fail(query("add_one_exit(x)", 10), "08006", r'could not start a container of image "faults-exit:1.0"')
    assert watch.seconds() < 20


@long
def test_never_ready(case, bad_starts, own_folder):
    """The session's deadline ends its wait; the manager's ends the container."""
    if RUNTIME != "docker":
        pytest.skip("images of processes belong to one manager")
    manager = Manager("--start-timeout-s=4", folder=own_folder)
    manager.start()
    try:
        session = case.session(is_warm=False)
        session.set(transship__manager_socket=manager.socket, transship__start_timeout="1s")
        session.fail(
            query("add_one_silent_volatile(x)", 10),
            "08006",
            r'the container of function "add_one" did not answer within 1000 ms',
            within=3,
        )
        session.set(transship__start_timeout="20s")
        said = session.fail(
            query("add_one_silent_volatile(x)", 10), "08006", r'could not start a container of image "faults-silent:1.0"'
        )
        assert "the container did not answer within 4 s" in said.message_detail
        wait_until("nothing is left", lambda: manager.complaints() == [])
    finally:
        manager.end()
        assert manager.containers() == []
        shutil.rmtree(manager.shm_dir)


def test_restarts_in_a_loop(case, bad_starts):
    """Each query is an answer or one error; and the manager slows down."""
    session = case.session()
    session.fail(query("nap_crash_volatile(x, 50)", 100), "08006", lost("nap"))
    session.fail(query("nap_crash(x, 50)", 100), "08006", lost("nap"), within=30)
    # One that is fast enough is answered in between.
    assert session.ask(query("add_one_crash(x)", 10), within=30) == answers(10)


@long
def test_circuit_opens(case, bad_starts):
    """A function whose replicas keep failing is not hammered, and the error says so."""
    session = case.session()

    def is_open():
        running = session.start(query("add_one_exit(x)", 10))
        running.wait(within=30)
        return running.error.diag.message_primary.startswith(
            'no container of image "faults-exit:1.0" is started for another'
        ) and running.error

    error = wait_until("the circuit opens", is_open, within=90)
    assert "the handler says goodbye" in error.diag.message_detail
    watch = Stopwatch()
    session.fail(query("add_one_exit_volatile(x)", 10), "08006", r"no container of image .* is started for another \d+ s")
    assert watch.seconds() < 2
