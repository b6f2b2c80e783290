"""A Docker daemon that stops, stands still and comes again; images and names that are not what they were. The daemon is one of
these tests' own, so that nobody else's containers end."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from conftest import BUILD, RUNTIME, Manager, Session, answers, build, create_functions, long, query, run, wait_until

pytestmark = pytest.mark.skipif(
    RUNTIME != "docker" or os.getuid() != 0 or shutil.which("dockerd") is None,
    reason="needs Docker, and root for a daemon of its own",
)

LOST = r'connection to the container of function "nap" was lost'


class Daemon:
    """A Docker daemon without networks, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.host = f"unix://{folder}/d.sock"
        self.process = None

    def start(self):
        folder = self.folder
        # One that was killed leaves it.
        (folder / "pid").unlink(missing_ok=True)
        options = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
        options += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        with open(folder / "log", "a") as log:
            # In a network of its own: at its start it would take down the bridge of the daemon that is there.
            command = ["unshare", "--net", "dockerd", "--host", self.host, *options]
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("the daemon answers", self.answers, within=30)

    def answers(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return self.docker("version", check=False).returncode == 0

    def docker(self, *arguments, check=True, within=60):
        return run("docker", *arguments, env={"DOCKER_HOST": self.host}, check=check, within=within)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(timeout=40)


@pytest.fixture(scope="module")
def place():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tsd", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        run("umount", "--lazy", mount, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def daemon(place):
    daemon = Daemon(place)
    daemon.start()
    with subprocess.Popen(["docker", "save", "faults:1.0"], stdout=subprocess.PIPE) as saved:
        loaded = subprocess.run(
            ["docker", "load", "--quiet"], stdin=saved.stdout, env=os.environ | {"DOCKER_HOST": daemon.host}, timeout=120
        )
    assert loaded.returncode == 0
    yield daemon
    if daemon.process.poll() is None:
        daemon.end(signal.SIGTERM)


@pytest.fixture
def own(place, daemon, database):
    """A manager on that daemon."""
    manager = Manager("--silent-timeout-s=2", "--adopted-grace-s=1", folder=place, env={"DOCKER_HOST": daemon.host})
    if daemon.process.poll() is not None:
        daemon.start()
    manager.start()
    yield manager
    if manager.process.poll() is None:
        manager.end()
    assert manager.containers() == []
    shutil.rmtree(manager.shm_dir)


@pytest.fixture
def session(own):
    with contextlib.closing(Session()) as session:
        session.set(transship__manager_socket=own.socket)
        check(session)
        yield session
        session.ask("RESET ALL")
        session.set(transship__manager_socket=own.socket)
        check(session)
        wait_until("nothing is left", lambda: own.complaints() == [], within=30)


def check(session):
    assert session.ask(query("add_one(x)", 1000), within=40) == answers(1000)


def test_stopped(daemon, own, session):
    """Its end stops its containers: an answer or one error; what comes next says what is missing, until it is there again."""
    running = session.start(query("nap_volatile(x, 20)", 400))
    own.leased()
    time.sleep(0.3)
    daemon.end(signal.SIGTERM)
    said = running.failure("08006", LOST, within=30)
    assert said.context.startswith('container function "nap_volatile", row')
    # Nobody can say what became of its container, so far as it is not known to be lost.
    session.fail(
        query("add_one(x)", 10),
        "08006",
        r'could not start a container of image "faults:1.0"|connection to the container of function "add_one" was lost',
    )
    daemon.start()


def test_killed(daemon, own, session):
    """Containers live on without it, and so do their queries and those that come."""
    with contextlib.closing(Session()) as other:
        other.set(transship__manager_socket=own.socket)
        running = session.start(query("nap_volatile(x, 10)", 300))
        own.leased()
        daemon.end(signal.SIGKILL)
        assert other.ask(query("add_one(x)", 1000)) == answers(1000)
        assert running.answer() == answers(300)
        # A daemon ends what it finds at its start.
        daemon.start()
        check(other)


def test_frozen(daemon, own, session):
    """What runs goes on, leases of what runs included; a container's start is waited for until the deadline."""
    with contextlib.closing(Session()) as other:
        other.set(transship__manager_socket=own.socket, transship__start_timeout="2s")
        running = session.start(query("nap_volatile(x, 10)", 200))
        own.leased()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            assert running.answer() == answers(200)
            assert session.ask(query("add_one(x)", 1000), within=5) == answers(1000)
            # For a second session at a time a second container would have to be started.
            running = session.start(query("nap_volatile(x, 10)", 300))
            own.leased()
            other.fail(
                query("nap_volatile(x, 10)", 10),
                "08006",
                r'the container of function "nap" did not answer within 2000 ms',
                within=5,
            )
            assert running.answer() == answers(300)
        finally:
            daemon.process.send_signal(signal.SIGCONT)


def test_replica_ends_while_frozen(daemon, own, session):
    """What became of it nobody can say; the batch's deadline ends the wait."""
    session.set(transship__batch_timeout="3s", transship__start_timeout="3s")
    running = session.start(query("nap_volatile(x, 10)", 300))
    name = own.leased()
    pid = int(daemon.docker("inspect", "--format", "{{.State.Pid}}", name))
    time.sleep(0.3)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        running.failure("08006", rf'{LOST}|container function "nap" did not answer within 3000 ms', within=10)
        session.fail(query("add_one(x)", 10), "08006", r'.* did not answer within 3000 ms', within=12)
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@long
def test_frozen_manager_ends(daemon, own, session):
    """A manager ends all the same, and its successor cleans up."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        own.end(within=45)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    own.start()
    check(session)


def test_image_removed(case):
    """A running replica goes on without its image; the next one cannot start, which the error says."""
    image = build("faults-gone", "gone")
    session = case.session()
    create_functions(session, image, "_gone", ["add_one", "nap"])
    assert session.ask(query("add_one_gone(x)", 100)) == answers(100)
    running = session.start(query("nap_gone_volatile(x, 10)", 150))
    tags = run("docker", "image", "ls", "--filter", "reference=faults-gone", "--format", "{{.Repository}}:{{.Tag}}").split()
    run("docker", "image", "rm", "--force", *tags)
    digest = [each["digest"] for each in case.manager.replicas(image)][0]
    assert running.answer() == answers(150)
    for each in case.manager.replicas(image):
        case.manager.kill_replica(each["name"])
    wait_until("they are gone", lambda: not case.manager.replicas(image))
    run("docker", "image", "rm", "--force", digest, check=False)
    wait_until("it is gone", lambda: run("docker", "image", "inspect", digest, check=False).returncode)
    for call in ("add_one_gone(x)", "add_one_gone_volatile(x)"):
        said = session.fail(query(call, 10), "42704", r'could not start a container of image "faults-gone:1.0"')
        assert "does not exist" in said.message_detail
    session.fail(
        "CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = \"faults-gone:1.0\"'",
        "42704",
        r'image "faults-gone:1.0" does not exist',
    )


def test_name_conflict(case):
    """A container that has the name which a build would give its own, as after a crash, does not keep the image from being built."""
    # Names by the manager's process would be the same in each container that a manager runs in.
    names = [f"transship-describe-{case.manager.process.pid}-{number}" for number in range(3)]
    for name in names:
        run("docker", "create", "--name", name, "faults:1.0")
    try:
        with tempfile.TemporaryDirectory() as folder:
            project = pathlib.Path(folder) / "project"
            shutil.copytree(pathlib.Path(__file__).parent / "image", project)
            manifest = (project / "transship.toml").read_text().replace('"faults"', '"faults-named"')
            (project / "transship.toml").write_text(manifest)
            (project / "mode").write_text(str(time.time()))
            # Other code, so that it is asked for its functions.
            with open(project / "handler.py", "a") as handler:
                handler.write(f"# {time.time()}\n")
            run(BUILD / "transship", "build", project, within=120)
    finally:
        run("docker", "rm", "--force", *names)
        run("docker", "image", "rm", "--force", "faults-named:1.0", check=False)
