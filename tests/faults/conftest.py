"""What the tests of faults share: a manager of their own, sessions whose waits all end, and what must not be left behind.

`tests/faults.sh` has built everything and started the private cluster; RUNTIME says what runs containers.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import psycopg
import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "target/release"
RUNTIME = os.environ["TRANSSHIP_RUNTIME"]
DATABASE = "transship_faults"
# No statement of these tests may last that long: whatever ends at this bound hangs.
STATEMENT_TIMEOUT_S = 50
# How long what is left behind has to go away.
PATIENCE_S = 15

# Takes more than some seconds, or is one of many alike: left out of the short form.
long = pytest.mark.long
docker_only = pytest.mark.skipif(RUNTIME != "docker", reason="a process has no such limits, and no engine to ask")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: left out of the short form")


def starved():
    """For how many seconds processes of this machine have waited for a processor so far; 0 if the kernel does not count them."""
    with contextlib.suppress(OSError):
        some = pathlib.Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(some.partition("total=")[2]) / 1e6
    return 0


class Stopwatch:
    """How long something takes on a machine with nothing else to do, as far as that can be told: what else runs there makes
    bounds on time three times as long at most."""

    def __init__(self):
        self.began, self.starved = time.monotonic(), starved()

    def seconds(self):
        passed = time.monotonic() - self.began
        return passed - min(starved() - self.starved, passed * 2 / 3)


def wait_until(what, is_so, within=PATIENCE_S):
    """Waits, but not for ever; what `is_so` gives, once it is true."""
    watch = Stopwatch()
    while not (found := is_so()):
        assert watch.seconds() < within, f"waited {within} s in vain until {what}"
        time.sleep(0.02)
    return found


def run(*command, within=60, check=True, env=None):
    """Runs a program to its end; what it wrote."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=within, env=os.environ | (env or {})
    )
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout if check else done


# Replicas and their manager


class Manager:
    """A manager that is started, asked, and killed. Without a folder it is the private one of scripts/environment.sh."""

    def __init__(self, *flags, folder=None, env=None):
        self.flags = flags
        self.env = dict(env or {})
        at = (lambda name, default: str(folder / default)) if folder else (lambda name, _: os.environ[name])
        self.socket = pathlib.Path(at("TRANSSHIP_SOCKET", "m.sock"))
        self.state_dir = pathlib.Path(at("TRANSSHIP_STATE_DIR", "state"))
        self.run_dir = pathlib.Path(at("TRANSSHIP_RUN_DIR", "r"))
        # One that no other manager uses, so that all of it can be looked at.
        self.shm_dir = pathlib.Path(tempfile.mkdtemp(prefix="transship-faults-", dir="/dev/shm"))
        self.shm_dir.chmod(0o755)
        self.log = (folder or pathlib.Path(os.environ["TRANSSHIP_SOCKET"]).parent) / "faults.log"
        self.process = None

    @property
    def environment(self):
        places = {"SOCKET": self.socket, "STATE_DIR": self.state_dir, "RUN_DIR": self.run_dir, "SHM_DIR": self.shm_dir}
        return os.environ | {f"TRANSSHIP_{name}": str(path) for name, path in places.items()} | self.env

    def spawn(self):
        """Starts transshipd, and does not wait."""
        user = "postgres" if os.getuid() == 0 else str(os.getuid())
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a") as log:
            command = [str(BUILD / "transshipd"), "--allow-user", user, *self.flags]
            return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self):
        self.process = self.spawn()
        wait_until("the manager answers", self.answers)

    def answers(self):
        assert self.process.poll() is None, f"the manager ended: {self.log.read_text()[-2000:]}"
        with contextlib.suppress(OSError):
            return self.ask({"request": "ping"})["response"] == "pong"

    def end(self, number=signal.SIGTERM, within=40):
        self.process.send_signal(number)
        self.process.wait(timeout=within)

    def ask(self, request, within=20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                return json.loads(lines.readline())

    def replicas(self, image="faults"):
        """The replicas of the images of these tests; all, if `image` is empty."""
        return [each for each in self.ask({"request": "replicas"})["replicas"] if each["image"].startswith(image)]

    def leased(self):
        """The name of the one replica that is at work."""
        found = wait_until("a replica is leased", lambda: [it for it in self.replicas() if it["leases"]])
        return found[0]["name"]

    def logs(self, name):
        return self.ask({"request": "logs", "replica": name}).get("text", "")

    def calls(self):
        """How often each value was passed to `tell`, by all replicas that there were."""
        kept = {path.name: path.read_text() for path in (self.state_dir / "logs").glob("*")}
        running = {each["name"]: self.logs(each["name"]) for each in self.replicas()}
        text = "\n".join((kept | running).values())
        return collections.Counter(int(value) for value in re.findall(r"^call (\d+)$", text, re.MULTILINE))

    def containers(self):
        """What the engine knows of this manager's, running or not."""
        label = f"label=org.transship.manager={self.state_dir}"
        return run("docker", "ps", "--all", "--format", "{{.Names}}", "--filter", label, env=self.env).split()

    def kill_replica(self, name):
        """Kills a replica's processes from outside."""
        if RUNTIME == "docker":
            # It may be the one that was killed before, and has gone since.
            run("docker", "kill", name, check=False, env=self.env)
            return
        record = json.loads((self.state_dir / "replicas" / name / "process.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)

    def complaints(self):
        """What is left of queries that have ended."""
        listed = self.replicas("")
        names = {each["name"] for each in listed}
        found = [f"a replica is {each['state']}" for each in listed if each["state"] not in ("ready", "paused")]
        found += [f"{each['leases']} leases on {each['name']}" for each in listed if each["leases"]]
        found += [f"a folder of sockets {path}" for path in self.run_dir.glob("*") if path.name != "lock"][len(names) :]
        found += [f"a folder of segments {path}" for path in self.shm_dir.glob("*")][len(names) :]
        found += [f"a segment {path}" for path in self.shm_dir.glob("*/segments/*")]
        mounts = [line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if self.owns_mount(line)]
        found += [f"a mount {line}" for line in mounts[2 * len(names) :]]
        if RUNTIME == "docker":
            found += [f"a container {name}" for name in set(self.containers()) ^ names]
            records = {path.name for path in (self.state_dir / "containers").glob("*")}
            found += [f"a record {name}" for name in records ^ names]
        return found + [f"a dead child {line}" for line in dead_children(self.process.pid)]

    def owns_mount(self, line):
        place = line.split()[1]
        return place.startswith((f"{self.run_dir}/", f"{self.shm_dir}/"))


def dead_children(pid):
    children = run("ps", "--no-headers", "-o", "pid,stat,comm", "--ppid", pid, check=False).stdout.splitlines()
    return [line for line in children if line.split()[1].startswith("Z")]


def descriptors(pid):
    """Open sockets, pipes, events and segments of a process: all but the files of a database, of which it keeps some open."""
    found = collections.Counter()
    for path in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            target = re.sub(r"\[\d+\]", "", os.readlink(path))
            if not target.startswith("/") or "/dev/shm/transship-faults" in target:
                found[target] += 1
    return found


def threads(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/task").glob("*")))


# Sessions


class Running:
    """A statement that runs in the background."""

    def __init__(self, connection, statement):
        self.rows = self.error = None
        self.took = None
        self.thread = threading.Thread(target=self._run, args=(connection, statement), daemon=True)
        self.watch = Stopwatch()
        self.thread.start()

    def _run(self, connection, statement):
        try:
            cursor = connection.execute(statement)
            self.rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self.error = error
        self.took = self.watch.seconds()

    def is_running(self):
        return self.thread.is_alive()

    def wait(self, within):
        while self.is_running():
            assert self.watch.seconds() < within, f"the statement hangs: no end within {within} s"
            self.thread.join(0.02)

    def answer(self, within=30):
        """Its rows."""
        self.wait(within)
        if self.error is not None:
            raise AssertionError(describe(self.error)) from self.error
        return self.rows

    def failure(self, code, message, within=20):
        """Its one error, which must have that code, and a message that the pattern matches from beginning to end."""
        self.wait(within)
        assert self.error is not None, f"no error, but {self.rows}"
        said = describe(self.error)
        assert self.error.sqlstate == code, said
        assert re.fullmatch(message, self.error.diag.message_primary), said
        return self.error.diag


def describe(error):
    parts = (error.diag.message_primary or str(error), error.diag.message_detail, error.diag.message_hint, error.diag.context)
    return "\n".join([str(error.sqlstate), *(part for part in parts if part)])


class Session:
    """A session of PostgreSQL, whose backend is looked at from outside."""

    def __init__(self, database=DATABASE, **settings):
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        options += f" -c statement_timeout={STATEMENT_TIMEOUT_S}s"
        self.connection = psycopg.connect(dbname=database, autocommit=True, options=options, connect_timeout=20)
        self.pid = self.connection.info.backend_pid
        self.before = None

    def start(self, statement):
        return Running(self.connection, statement)

    def ask(self, statement, within=30):
        return self.start(statement).answer(within)

    def value(self, statement, within=30):
        return self.ask(statement, within)[0][0]

    def fail(self, statement, code, message, within=20):
        return self.start(statement).failure(code, message, within)

    def set(self, **settings):
        for name, value in settings.items():
            self.ask(f"SELECT set_config('{name.replace('__', '.')}', '{value}', false)")

    def is_open(self):
        return not self.connection.closed and not self.connection.broken

    def close(self):
        with contextlib.suppress(psycopg.Error):
            self.connection.close()

    def note(self):
        """Remembers what the backend holds between its queries."""
        self.before = descriptors(self.pid), threads(self.pid)

    def complaints(self):
        if not self.is_open() or self.before is None:
            return []
        held, count = self.before
        more = descriptors(self.pid) - held
        found = [f"{number} more {what} in the backend" for what, number in more.items()]
        return found + ([f"{threads(self.pid) - count} more threads in the backend"] if threads(self.pid) > count else [])


# Answers that are known


def numbers(count, first=1):
    return f"generate_series({first}::bigint, {first + count - 1}) x"


def query(call, count, first=1):
    """A statement that gives each x with its result."""
    return f"SELECT x, {call} FROM {numbers(count, first)}"


def answers(count, first=1):
    """Its rows: none lost, none doubled, each with its own result."""
    return [(x, x + 1) for x in range(first, first + count)]


FUNCTIONS = {
    "add_one": "x bigint",
    "nap": "x bigint, ms bigint",
    "tell": "x bigint, ms bigint",
    "leave": "x bigint, bad bigint",
    "hog": "x bigint, bad bigint",
    "fill": "x bigint, bad bigint, folder text",
    "fork": "x bigint, bad bigint",
    "hang_up": "x bigint, bad bigint",
    "refuse": "x bigint, bad bigint",
}


def create_functions(session, image="faults:1.0", suffix="", names=FUNCTIONS):
    """Each function twice: NAME is IMMUTABLE, NAME_volatile is VOLATILE."""
    for name in names:
        for ending, volatility in (("", "IMMUTABLE PARALLEL SAFE COST 1000"), ("_volatile", "VOLATILE")):
            session.ask(
                f"CREATE OR REPLACE FUNCTION {name}{suffix}{ending}({FUNCTIONS[name]}) RETURNS bigint LANGUAGE container "
                f"{volatility} STRICT AS 'image = \"{image}\" function = \"{name}\"'",
                within=40,
            )


def build(name, mode="", **more):
    """Builds the image under a name of its own, with a mode, and with keys of the manifest replaced."""
    with tempfile.TemporaryDirectory() as folder:
        project = pathlib.Path(folder) / "project"
        shutil.copytree(pathlib.Path(__file__).parent / "image", project)
        manifest = (project / "transship.toml").read_text().replace('name = "faults"', f'name = "{name}"')
        for key, value in more.items():
            manifest = re.sub(rf"^{key} = .*$", f"{key} = {value}", manifest, flags=re.MULTILINE)
        (project / "transship.toml").write_text(manifest)
        (project / "mode").write_text(mode)
        run(BUILD / "transship", "build", project, within=300)
    return f"{name}:1.0"


@pytest.fixture(scope="session")
def manager():
    """The manager, with bounds that are short enough to be waited for."""
    flags = ("--idle-timeout-s=60", "--silent-timeout-s=2", "--adopted-grace-s=1", "--segments-mb=64")
    manager = Manager(*flags)
    manager.start()
    yield manager
    if manager.process.poll() is None:
        manager.end()
    left = [*manager.shm_dir.iterdir(), *(path for path in manager.run_dir.iterdir() if path.name != "lock")]
    assert not left, left
    if RUNTIME == "docker":
        assert manager.containers() == []
    manager.shm_dir.rmdir()


@pytest.fixture
def own_folder():
    """A folder for another manager, with a short path."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tsf", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def database(manager):
    with contextlib.closing(Session("postgres")) as session:
        session.ask(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        session.ask(f"CREATE DATABASE {DATABASE}")
    with contextlib.closing(Session()) as session:
        session.ask("CREATE EXTENSION transship")
        create_functions(session)
    return DATABASE


class Case:
    """Sessions of one test, and the checks that every test ends with."""

    def __init__(self, manager):
        self.manager = manager
        self.sessions = []
        self.held = None

    def session(self, is_warm=True, **settings):
        session = Session(**settings)
        self.sessions.append(session)
        if is_warm:
            self.check(session)
            session.note()
        return session

    def check(self, session):
        """The next query works, whatever went before."""
        assert session.ask(query("add_one(x)", 1000)) == answers(1000)
        assert session.ask(query("add_one_volatile(x)", 10)) == answers(10)

    def wait_for_end_of_lease(self, session):
        """Until a session, which has kept its lease for a moment after its last call, has none."""
        wait_until("its lease has ended", lambda: session.pid not in [
            holder["pid"] for each in self.manager.replicas() for holder in each.get("holders", [])
        ])  # fmt: skip

    def wait_for_replies(self, count):
        """Until so many statements have had a reply each, so that nothing of their start is under way."""
        query = "SELECT count(*) FROM transship.progress WHERE batches_received > 0"
        with contextlib.closing(Session()) as session:
            wait_until(f"{count} have a reply", lambda: session.value(query) == count)

    def note(self):
        self.held = descriptors(self.manager.process.pid)

    def complaints(self):
        found = self.manager.complaints()
        for session in self.sessions:
            found += session.complaints()
        if self.held is not None:
            more = descriptors(self.manager.process.pid) - self.held
            found += [f"{number} more {what} in the manager" for what, number in more.items()]
        return found

    def assert_nothing_leaked(self):
        watch = Stopwatch()
        while found := self.complaints():
            assert watch.seconds() < PATIENCE_S, f"left behind: {found}"
            time.sleep(0.05)


@pytest.fixture
def case(manager, database):
    """Afterwards the next query works, in the sessions that are there and in a new one, and nothing is left behind."""
    if manager.process.poll() is not None:
        manager.start()
    case = Case(manager)
    with contextlib.closing(Session()) as session:
        case.check(session)
    case.assert_nothing_leaked()
    case.note()
    yield case
    try:
        for session in case.sessions:
            if session.is_open():
                session.ask("RESET ALL")
                case.check(session)
        with contextlib.closing(Session()) as session:
            case.check(session)
        case.assert_nothing_leaked()
    finally:
        for session in case.sessions:
            session.close()
