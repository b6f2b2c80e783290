"""A manager that is killed, started twice, out of reach, or out of disk."""

import shutil
import signal
import time

import pytest
from conftest import RUNTIME, Manager, answers, docker_only, long, query, run, wait_until

UNREACHABLE = r'could not reach the container manager at ".*/transshipd.sock"'


@pytest.mark.parametrize("volatility", ["", "_volatile"])
def test_killed_and_restarted(case, volatility):
    """Queries go on without it, and its successor takes over their replicas."""
    session, other = case.session(), case.session()
    running = [each.start(query(f"nap{volatility}(x, 10)", 300)) for each in (session, other)]
    name = case.manager.leased()
    case.wait_for_replies(2)
    before = {each["name"] for each in case.manager.replicas()}
    case.manager.end(signal.SIGKILL)
    assert all(each.is_running() for each in running)
    case.manager.start()
    case.note()
    assert {each["name"] for each in case.manager.replicas()} == before
    # A new session shares the container with those that were there before.
    third = case.session(is_warm=False)
    assert third.ask(query("add_one(x)", 100)) == answers(100)
    for each in running:
        assert each.answer() == answers(300)
    assert name in {each["name"] for each in case.manager.replicas()}


def test_killed_and_restarted_again_and_again(case):
    sessions = [case.session(is_warm=False) for _ in range(4)]
    running = [session.start(query("nap_volatile(x, 10)", 600)) for session in sessions]
    case.wait_for_replies(4)
    for _ in range(4):
        case.manager.end(signal.SIGKILL)
        case.manager.start()
    case.note()
    for each in running:
        assert each.answer(within=40) == answers(600)


def test_killed_and_gone(case):
    """Queries that have their replica end well; new ones say what is missing."""
    session, other = case.session(), case.session()
    running = session.start(query("nap_volatile(x, 10)", 150))
    case.manager.leased()
    time.sleep(0.2)
    case.manager.end(signal.SIGKILL)
    said = other.fail(query("add_one(x)", 10), "08006", UNREACHABLE, within=5)
    assert "Start transshipd" in said.message_hint
    other.fail("SELECT add_one_volatile(1)", "08006", UNREACHABLE, within=5)
    assert running.answer() == answers(150)
    case.manager.start()
    case.note()


def test_ends_during_queries(case):
    """At its end it stops its replicas, and what they were at is an error."""
    session, other = case.session(), case.session()
    running = session.start(query("nap_volatile(x, 10)", 400))
    second = other.start(query("nap(x, 10)", 400))
    case.manager.leased()
    time.sleep(0.3)
    case.manager.end()
    assert running.failure("08006", r'connection to the container of function "nap" was lost').context
    assert second.failure("08006", f"{UNREACHABLE}|connection to the container of function .* was lost").context
    if RUNTIME == "docker":
        assert case.manager.containers() == []
    case.manager.start()
    case.note()


def test_started_twice(case):
    session = case.session()
    running = session.start(query("nap_volatile(x, 10)", 150))
    case.manager.leased()
    second = case.manager.spawn()
    assert second.wait(timeout=20) == 1
    assert "another manager uses it" in case.manager.log.read_text().splitlines()[-1]
    assert running.answer() == answers(150)


def test_socket_removed(case):
    """Queries that have their replica end well, and a new start takes over."""
    session, other = case.session(), case.session()
    running = session.start(query("nap_volatile(x, 10)", 400))
    name = case.manager.leased()
    case.wait_for_end_of_lease(other)
    case.manager.socket.unlink()
    other.fail(query("add_one(x)", 10), "08006", UNREACHABLE, within=5)
    case.manager.end(signal.SIGKILL)
    case.manager.start()
    case.note()
    assert name in {each["name"] for each in case.manager.replicas()}
    assert running.answer() == answers(400)


def test_frozen(case):
    """One that stands still keeps nobody for longer than transship.start_timeout."""
    session, other = case.session(), case.session()
    running = session.start(query("nap_volatile(x, 10)", 300))
    case.manager.leased()
    case.wait_for_end_of_lease(other)
    other.set(transship__start_timeout="1s")
    case.manager.process.send_signal(signal.SIGSTOP)
    try:
        other.fail(query("add_one(x)", 10), "08006", r'the container of function "add_one" did not answer within 1000 ms', within=4)
        assert running.answer() == answers(300)
    finally:
        case.manager.process.send_signal(signal.SIGCONT)


@pytest.fixture
def small_disk(own_folder):
    """A folder whose state folder has room for 256 kB."""
    state = own_folder / "state"
    state.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "transship-faults", state)
    yield own_folder
    run("umount", "--lazy", state)


def fill(folder):
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return ballast


@docker_only
def test_disk_full(case, small_disk):
    """Without room for its notes it starts no container, and says so; what runs goes on. Then there is room again."""
    manager = Manager("--silent-timeout-s=2", "--adopted-grace-s=1", "--idle-timeout-s=1", folder=small_disk)
    manager.start()
    try:
        session = case.session()
        session.set(transship__manager_socket=manager.socket)
        case.check(session)
        running = session.start(query("nap_volatile(x, 10)", 150))
        manager.leased()
        ballast = fill(manager.state_dir)
        assert running.answer() == answers(150)
        # Its only container is stopped, whose log finds no room.
        wait_until("the idle one is stopped", lambda: not manager.replicas(""))
        # Its record left some room.
        ballast = fill(manager.state_dir)
        said = session.fail(query("add_one_volatile(x)", 10), "08006", r'could not start a container of image "faults:1.0"')
        assert "No space left on device" in said.message_detail
        assert manager.containers() == []
        ballast.unlink()
        case.check(session)
        # A restart finds what there is.
        manager.end(signal.SIGKILL)
        fill(manager.state_dir)
        manager.start()
        case.check(session)
        wait_until("nothing is left", lambda: manager.complaints() == [])
    finally:
        if manager.process.poll() is None:
            manager.end()
        assert manager.containers() == []
        shutil.rmtree(manager.shm_dir)


@long
@docker_only
def test_ends_while_it_starts_a_container(case):
    """Killed in the middle of a start, it leaves nothing that its successor does not find."""
    session = case.session()
    for pause in (0.1, 0.4, 0.8):
        for each in case.manager.replicas():
            case.manager.kill_replica(each["name"])
        wait_until("they are gone", lambda: not case.manager.replicas())
        running = session.start(query("nap(x, 1)", 100))
        time.sleep(pause)
        case.manager.end(signal.SIGKILL)
        running.failure("08006", f"{UNREACHABLE}|connection to the container of function .* was lost") if (
            running.thread.join(20) or running.error
        ) else running.answer()
        case.manager.start()
        case.note()
        case.check(session)
        case.assert_nothing_leaked()
