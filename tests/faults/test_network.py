"""Servers behind a network that cuts, delays and forgets; and whose certificate is no longer good. The network is a proxy on
loopback that does as it is told."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tomllib

import pytest
from conftest import FUNCTIONS, ROOT, Session, answers, long, query, run, wait_until

CHUNK = 64 << 10


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of the Python template that runs elsewhere, as far as the engine knows: its ports of Flight and HTTP."""
    folder = tmp_path_factory.mktemp("server")
    image = pathlib.Path(__file__).parent / "image"
    shutil.copytree(image, folder / "function")
    manifest = tomllib.loads((image / "transship.toml").read_text())
    manifest["handler"] = "handler.py"
    manifest["functions"] = [{"kind": "scalar", "batch": "row"} | entry for entry in manifest["functions"]]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ports = {"grpc": free_port(), "http": free_port()}
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "container_templates/python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRANSSHIP_ROOT": str(folder),
        "TRANSSHIP_FLIGHT_PORT": str(ports["grpc"]),
        "TRANSSHIP_HTTP_PORT": str(ports["http"]),
    }
    command = [sys.executable, "-m", "transship_server", "serve"]
    with open(folder / "log", "w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            for port in ports.values():
                wait_until(f"the server listens: {folder}/log", lambda: can_connect(port), within=30)
            yield ports
        finally:
            process.kill()


def can_connect(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


class Proxy:
    """Passes bytes on to a port of this host, as long as it is not told otherwise; over TLS, if it has a context."""

    def __init__(self, target):
        self.target = target
        self.port = free_port()
        self.delay = 0
        # How many bytes of answers the next connections carry before they are cut.
        self.cut_after = None
        self.is_open = threading.Event()
        self.is_open.set()
        self.context = None
        self.refuses = False
        self.pairs = []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        self.is_open.wait()
        try:
            if self.refuses:
                raise OSError
            if self.context:
                client.settimeout(10)
                client = self.context.wrap_socket(client, server_side=True)
                client.settimeout(None)
            upstream = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            upstream.settimeout(None)
        except OSError:
            return reset(client)
        with self.lock:
            self.pairs.append((client, upstream))
        left = self.cut_after
        threading.Thread(target=self._pump, args=(client, upstream, None), daemon=True).start()
        self._pump(upstream, client, left)

    def _pump(self, source, sink, left):
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(CHUNK):
                time.sleep(self.delay)
                self.is_open.wait()
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                sink.sendall(data)
                if left == 0:
                    break
        for end in (source, sink):
            reset(end)

    def hold(self):
        """From now on nothing gets through, and nobody is told."""
        self.is_open.clear()

    def go_on(self):
        self.is_open.set()

    def cut(self):
        """Resets every connection."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                reset(end)

    def close(self):
        self.listener.close()
        self.go_on()
        self.cut()


def reset(connection):
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()


@pytest.fixture(params=["grpc", "http"])
def scheme(request):
    return request.param


@pytest.fixture
def proxy(server, scheme):
    with contextlib.closing(Proxy(server[scheme])) as proxy:
        yield proxy


def declare(session, endpoint, options=""):
    """The functions of that endpoint, as far_NAME and far_NAME_volatile."""
    for name in ("add_one", "nap"):
        for ending, volatility in (("", "IMMUTABLE"), ("_volatile", "VOLATILE")):
            session.ask(
                f"CREATE OR REPLACE FUNCTION far_{name}{ending}({FUNCTIONS[name]}) RETURNS bigint LANGUAGE container "
                f"{volatility} STRICT AS '{endpoint} function = \"{name}\"'"
            )


@pytest.fixture
def far(case, proxy, scheme):
    session = case.session()
    declare(session, f'endpoint = "{scheme}://127.0.0.1:{proxy.port}"')
    assert session.ask(query("far_add_one(x)", 1000)) == answers(1000)
    session.note()
    yield session
    # Nothing of what went before is in the way.
    proxy.go_on()
    proxy.delay, proxy.cut_after, proxy.refuses = 0, None, False
    session.ask("RESET ALL")
    assert session.ask(query("far_add_one(x)", 1000)) == answers(1000)


LOST = r'connection to the container of function "{}" was lost|could not reach ".*": .*'


def test_cut_volatile(far, proxy):
    running = far.start(query("far_nap_volatile(x, 10)", 200))
    time.sleep(0.6)
    proxy.cut()
    said = running.failure("08006", LOST.format("nap"), within=5)
    assert said.context.startswith('container function "far_nap_volatile", row')


def test_cut_immutable(far, proxy):
    running = far.start(query("far_nap(x, 10)", 200))
    time.sleep(0.6)
    proxy.cut()
    assert running.answer(within=15) == answers(200)


@pytest.mark.parametrize("count", [0, 9, 1000, 300_000, *(pytest.param(count, marks=long) for count in (1, 100, 30_000))])
def test_cut_after_so_many_bytes(far, proxy, count):
    """Wherever an answer breaks off, it is no answer."""
    proxy.cut()
    proxy.cut_after = count
    for call in ("far_add_one_volatile(x)", "far_add_one(x)"):
        running = far.start(query(call, 50_000))
        running.wait(within=20)
        if running.error is None:
            assert running.rows == answers(50_000)
        else:
            running.failure("08006", LOST.format("add_one"))


def test_delayed(far, proxy):
    proxy.delay = 0.05
    assert far.ask(query("far_add_one(x)", 30_000), within=20) == answers(30_000)


@pytest.mark.parametrize("volatility", ["", "_volatile"])
def test_half_open(far, proxy, volatility):
    """A peer of which nothing is heard any more is a timeout, and the next query does not wait for it again."""
    far.set(transship__batch_timeout="1500ms")
    running = far.start(query(f"far_nap{volatility}(x, 10)", 200))
    time.sleep(0.5)
    proxy.hold()
    running.failure("08006", r'container function "nap" did not answer within 1500 ms', within=5)
    # The old connections stay as they are, new ones work.
    with proxy.lock:
        proxy.pairs.clear()
    proxy.is_open = threading.Event()
    proxy.is_open.set()
    assert far.ask(query("far_add_one(x)", 1000), within=10) == answers(1000)


def test_half_open_while_idle(far, proxy):
    """A connection that died between two transactions costs no answer."""
    proxy.cut()
    assert far.ask(query("far_add_one(x)", 1000), within=10) == answers(1000)
    assert far.ask(query("far_add_one_volatile(x)", 1000), within=10) == answers(1000)


def test_connection_is_never_made(far, proxy):
    """Somebody takes the connection and says nothing."""
    far.set(transship__batch_timeout="1500ms", transship__start_timeout="1500ms")
    proxy.hold()
    proxy.cut()
    far.fail(query("far_add_one(x)", 10), "08006", r".* did not answer within \d+ ms", within=8)
    far.fail(query("far_add_one_volatile(x)", 10), "08006", r".* did not answer within \d+ ms", within=8)


def test_nobody_listens(case, scheme):
    session = case.session()
    session.ask("SET check_function_bodies = off")
    declare(session, f'endpoint = "{scheme}://127.0.0.1:{free_port()}"')
    for call in ("far_add_one(x)", "far_add_one_volatile(x)"):
        said = session.fail(query(call, 10), "08006", LOST.format("add_one"), within=10)
        assert "Connection refused" in f"{said.message_primary} {said.message_detail}"


def test_one_of_two_servers_is_lost(case, server, scheme):
    with contextlib.closing(Proxy(server[scheme])) as first, contextlib.closing(Proxy(server[scheme])) as second:
        # A session keeps its connections to servers elsewhere, here of as many as answered it.
        session = case.session(is_warm=False)
        declare(session, f'endpoint = "{scheme}://127.0.0.1:{first.port},{scheme}://127.0.0.1:{second.port}"')
        for lost in (first, second):
            running = session.start(query("far_nap(x, 10)", 200))
            time.sleep(0.5)
            lost.refuses = True
            lost.cut()
            assert running.answer(within=15) == answers(200)
            assert session.ask(query("far_add_one_volatile(x)", 100), within=10) == answers(100)
            lost.refuses = False


# Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """One that is good for a day, and one of the same name that was good until yesterday."""
    folder = tmp_path_factory.mktemp("tls")
    run(ROOT / "tests/certificates.sh", folder)
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    run(
        "openssl", "x509", "-req", "-in", folder / "server.csr", "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key",
        "-CAcreateserial", "-days", "-1", "-out", folder / "expired.pem", "-extfile", folder / "names",
    )  # fmt: skip
    return folder


def context_of(folder, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def test_certificate_expires(case, proxy, scheme, certificates):
    """Sessions that are there find out with their next connection, as new ones do; a new certificate mends it."""
    proxy.context = context_of(certificates, "server")
    session = case.session()
    secure = {"grpc": "grpcs", "http": "https"}[scheme]
    session.ask("DROP SERVER IF EXISTS secure CASCADE")
    session.ask(
        f"CREATE SERVER secure FOREIGN DATA WRAPPER transship OPTIONS (endpoint '{secure}://localhost:{proxy.port}', "
        f"ca '{(certificates / 'ca.pem').read_text()}')"
    )
    declare(session, 'server = "secure"')
    assert session.ask(query("far_add_one(x)", 1000)) == answers(1000)
    session.note()
    proxy.context = context_of(certificates, "expired")
    proxy.cut()
    for call in ("far_add_one(x)", "far_add_one_volatile(x)"):
        said = session.fail(query(call, 10), "08006", LOST.format("add_one"), within=10)
        assert "expired" in f"{said.message_primary} {said.message_detail}".lower()
    with contextlib.closing(Session()) as other:
        other.fail(query("far_add_one(x)", 10), "08006", LOST.format("add_one"), within=10)
    proxy.context = context_of(certificates, "server")
    assert session.ask(query("far_add_one(x)", 1000)) == answers(1000)
    session.ask("DROP SERVER secure CASCADE")
