"""Backends that end in mid-batch, and servers that come again; too many of them, and one without memory."""

import contextlib
import os
import re
import signal
import time

import psycopg
import pytest
from conftest import Session, Stopwatch, answers, query, run, wait_until

GONE = {"57P01", "57P02", "57P03", "08006", "08003", None}


def is_gone(session):
    try:
        os.kill(session.pid, 0)
    except ProcessLookupError:
        return True
    return False


def crash(pid):
    """Kills a process of the server, which then ends all others and starts again."""
    with contextlib.closing(Session("postgres")) as canary:
        os.kill(pid, signal.SIGKILL)
        # It takes connections until it has seen what happened.
        running = canary.start("SELECT pg_sleep(20)")
        running.wait(within=20)
        assert running.error.sqlstate in GONE, running.error


def wait_for_server():
    """Until it takes connections again."""

    def answers_again():
        with contextlib.suppress(psycopg.Error):
            Session().close()
            return True

    wait_until("the server is there again", answers_again, within=30)


@pytest.mark.parametrize("volatility", ["", "_volatile"])
@pytest.mark.parametrize("transport", ["auto", "flight"])
def test_terminated_in_mid_batch(case, volatility, transport):
    """SIGTERM ends a backend at once, whatever it waits for, and with it its lease and its segments."""
    session = case.session()
    session.set(transship__transport=transport)
    running = session.start(query(f"nap{volatility}(x, 20)", 1000))
    case.manager.leased()
    time.sleep(0.3)
    watch = Stopwatch()
    os.kill(session.pid, signal.SIGTERM)
    running.wait(within=20)
    assert running.error.sqlstate in GONE, running.error
    assert "terminating connection due to administrator command" in str(running.error)
    wait_until("the backend has ended", lambda: is_gone(session), within=5)
    wait_until("its lease has ended", lambda: not any(each["leases"] for each in case.manager.replicas()), within=5)
    assert watch.seconds() < 10


def test_killed_in_mid_batch(case):
    """SIGKILL is a crash: the server restarts, and what the backend held is let go of by the manager."""
    session, other = case.session(), case.session()
    running = session.start(query("nap_volatile(x, 20)", 1000))
    beside = other.start(query("nap(x, 20)", 1000))
    wait_until("both are at work", lambda: sum(each["leases"] for each in case.manager.replicas()) == 2)
    time.sleep(0.3)
    crash(session.pid)
    for each in (running, beside):
        each.wait(within=20)
        assert each.error.sqlstate in GONE, each.error
    wait_for_server()
    wait_until("their leases have ended", lambda: not any(each["leases"] for each in case.manager.replicas()), within=5)


def test_killed_while_it_starts_a_container(case):
    for each in case.manager.replicas():
        case.manager.kill_replica(each["name"])
    wait_until("they are gone", lambda: not case.manager.replicas())
    session = case.session(is_warm=False)
    running = session.start(query("add_one(x)", 100))
    wait_until("one starts", lambda: [each for each in case.manager.replicas() if each["state"] == "starting"])
    crash(session.pid)
    running.wait(within=20)
    assert running.error.sqlstate in GONE
    wait_for_server()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_parallel_worker_dies(case, number):
    """A worker that is told to end is one error of its query; one that is killed is a crash."""
    session = case.session()
    session.ask("DROP TABLE IF EXISTS many")
    session.ask("CREATE TABLE many AS SELECT x FROM generate_series(1::bigint, 20000) x")
    session.ask("ALTER TABLE many SET (parallel_workers = 2)")
    session.ask("ANALYZE many")
    session.set(parallel_setup_cost=0, parallel_tuple_cost=0, min_parallel_table_scan_size=0)
    plan = "\n".join(line for (line,) in session.ask("EXPLAIN (COSTS OFF) SELECT x, nap(x, 1) FROM many"))
    assert "Workers Planned: 2" in plan and "Container Batch" in plan, plan
    running = session.start("SELECT x, nap(x, 1) FROM many")
    case.manager.leased()
    with contextlib.closing(Session()) as other:
        workers = wait_until(
            "workers are at work",
            lambda: [
                pid
                for (pid,) in other.ask(
                    f"SELECT pid FROM pg_stat_activity WHERE leader_pid = {session.pid} AND backend_type = 'parallel worker'"
                )
            ],
        )
        time.sleep(0.3)
        crash(workers[0]) if number == signal.SIGKILL else os.kill(workers[0], number)
        running.wait(within=20)
    if number == signal.SIGTERM:
        assert running.error.sqlstate == "57P01", running.error
        assert session.is_open()
    else:
        assert running.error.sqlstate in GONE, running.error
        wait_for_server()


def test_server_stops_immediately(case):
    """As a failover does: no backend has time for anything."""
    from conftest import ROOT

    session = case.session()
    running = session.start(query("nap_volatile(x, 20)", 1000))
    case.manager.leased()
    data = run("psql", "-qAtX", "-d", "postgres", "-c", "SHOW data_directory").strip()
    postmaster = int(open(f"{data}/postmaster.pid").readline())
    os.kill(postmaster, signal.SIGQUIT)
    running.wait(within=20)
    assert running.error.sqlstate in GONE, running.error
    wait_until("it has ended", lambda: not os.path.exists(f"{data}/postmaster.pid"), within=20)
    wait_until("the lease has ended", lambda: not any(each["leases"] for each in case.manager.replicas()), within=5)
    run(ROOT / "scripts/cluster.sh", "start")
    wait_for_server()


def test_connections_exhausted(case):
    """As many sessions as the server takes share the replicas; one more is refused, and harms nobody."""
    sessions = [case.session(is_warm=False) for _ in range(20)]
    most = int(sessions[0].value("SHOW max_connections"))
    with contextlib.suppress(psycopg.OperationalError):
        while len(sessions) <= most:
            session = Session()
            case.sessions.append(session)
            sessions.append(session)
    with pytest.raises(psycopg.OperationalError, match="too many clients|remaining connection slots"):
        Session()
    assert most - 20 < len(sessions) <= most
    running = [session.start(query("nap_volatile(x, 1)", 20)) for session in sessions]
    for each in running:
        assert each.answer(within=50) == answers(20)
    # Leases last to the end of the transaction.
    for session in sessions[:40]:
        session.ask("BEGIN")
    running = [session.start(query("add_one(x)", 1000)) for session in sessions]
    for each in running:
        assert each.answer(within=50) == answers(1000)
    assert sum(each["leases"] for each in case.manager.replicas()) >= 40
    for session in sessions:
        session.close()


def limit_memory(session, more):
    """Lets the backend have so much address space beyond what it has."""
    status = open(f"/proc/{session.pid}/status").read()
    size = int(re.search(r"VmSize:\s+(\d+) kB", status).group(1)) << 10
    prlimit(session, f"--as={size + more}:")


def prlimit(session, limit):
    """As the server's user: a container's root may not be allowed to."""
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
    run(*user, "prlimit", "--pid", session.pid, limit)


@pytest.mark.parametrize("transport", ["auto", "flight", "json"])
@pytest.mark.parametrize("more", [1 << 20, 8 << 20, 48 << 20])
def test_backend_out_of_memory(case, transport, more):
    """A backend without memory says so; it is no crash, and the session goes on once there is some."""
    session = case.session()
    # The compiler is a library that needs more than that.
    session.set(transship__transport=transport, jit="off")
    with contextlib.closing(Session()) as beside:
        session.ask("CREATE TEMP TABLE t AS SELECT x FROM generate_series(1::bigint, 200000) x")
        limit_memory(session, more)
        running = session.start("SELECT count(*), sum(add_one(x)), length(string_agg(repeat('x', 100), '')) FROM t")
        running.wait(within=20)
        if running.error is None:
            assert running.rows == [(200_000, 200_000 * 200_003 // 2, 20_000_000)]
        else:
            assert running.error.sqlstate in ("53200", "53000", "08006"), running.error
        assert session.is_open(), running.error
        prlimit(session, "--as=unlimited:")
        # Nobody else has lost anything.
        assert beside.value("SELECT 1") == 1


@pytest.mark.parametrize("transport", ["auto", "flight", "json"])
def test_memory_ends_anywhere(case, transport):
    """Whichever allocation is the first to fail, the session has one error, and the server goes on."""
    beside = case.session(is_warm=False)
    for quarters in range(1, 41, 3):
        with contextlib.closing(Session()) as session:
            session.set(transship__transport=transport, jit="off")
            case.check(session)
            session.ask("CREATE TEMP TABLE t AS SELECT x FROM generate_series(1::bigint, 200000) x")
            limit_memory(session, quarters << 18)
            running = session.start("SELECT sum(add_one(x)), length(string_agg(repeat('x', 100), '')) FROM t")
            running.wait(within=20)
            assert running.error is None or running.error.sqlstate in ("53200", "53000", "08006"), running.error
            assert session.is_open(), running.error
    # Nobody else has lost anything.
    assert beside.value("SELECT 1") == 1


@pytest.mark.parametrize("transport", ["auto", "flight", "json"])
@pytest.mark.parametrize("source", ["FROM (VALUES (20000000)) v (n)", "FROM generate_series(20000000, 20000001) n OFFSET 0"])
def test_large_argument_without_memory(case, transport, source):
    """Wherever there is no memory for another copy of a large argument, the session has one error, and the server goes on."""
    beside = case.session(is_warm=False)
    for more_mb in range(30, 210, 20):
        with contextlib.closing(Session()) as session:
            session.set(transship__transport=transport, jit="off")
            case.check(session)
            limit_memory(session, more_mb << 20)
            running = session.start(f"SELECT fill(1, 2, repeat('x', n)) {source}")
            running.wait(within=20)
            assert running.error is None or running.error.sqlstate in ("53200", "53000", "08006"), running.error
            assert session.is_open(), running.error
    # Nobody else has lost anything.
    assert beside.value("SELECT 1") == 1
