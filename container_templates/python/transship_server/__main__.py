"""Starts the server: python -m transship_server [serve | describe].

serve answers on the sockets and ports of docs/protocol.md §8; describe prints the manifest as JSON with every
signature filled in, which is what the image's label carries.
"""

import atexit
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading

# Arrow's allocator would reserve 1 GiB at its first large buffer, which a limit on a process's memory counts; in KiB.
os.environ.setdefault("MIMALLOC_ARENA_RESERVE", "65536")

_ENDING = (signal.SIGTERM, signal.SIGINT)


def main(command):
    root = os.environ.get("TRANSSHIP_ROOT", "/opt/transship")
    # What the handler prints is a log, not an answer.
    output, sys.stdout = sys.stdout, sys.stderr
    from . import lines

    # Before the handler is loaded, which may keep the streams.
    lines.install()
    with open(f"{root}/manifest.json", encoding="utf-8") as file:
        manifest = json.load(file)
    from . import function

    try:
        functions = function.load(manifest, f"{root}/function")
    except ValueError as error:
        sys.exit(f"transship_server: {error}")
    if command == "describe":
        describe(manifest, functions, output)
    else:
        serve(functions)


def describe(manifest, functions, output):
    for entry in manifest["functions"]:
        found = functions[entry["name"]]
        entry["arguments"] = [f"{name} {kind.name}" for name, kind in found.arguments]
        entry["returns"] = found.result.name
        if found.kind == "aggregate":
            entry["merges"] = hasattr(found.target, "merge")
    json.dump(manifest, output)


def serve(functions):
    # Before the parts that divide them among themselves.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    from . import flight, offers, rest

    servers, signals = [], catch_signals()
    # The engine that connects is another user than this one; the directory around the socket decides who gets here.
    umask = os.umask(0)
    directory = os.environ.get("TRANSSHIP_SOCKET_DIR")
    if directory:
        for name in ("flight.sock", "http.sock", "tables.sock"):
            if os.path.exists(f"{directory}/{name}"):
                os.unlink(f"{directory}/{name}")
        # Before anybody is told that it is there.
        offers.listen(f"{directory}/tables.sock")
        servers.append(rest.UnixServer(f"{directory}/http.sock", functions))
        servers.append(flight.Server(f"grpc+unix://{directory}/flight.sock", functions))
    if port := os.environ.get("TRANSSHIP_HTTP_PORT"):
        servers.append(rest.TcpServer(("0.0.0.0", int(port)), functions))
    if port := os.environ.get("TRANSSHIP_FLIGHT_PORT"):
        servers.append(flight.Server(f"grpc://0.0.0.0:{port}", functions))
    # The handler's files are nobody else's.
    os.umask(umask)
    if not servers:
        sys.exit("transship_server: set TRANSSHIP_SOCKET_DIR, TRANSSHIP_HTTP_PORT or TRANSSHIP_FLIGHT_PORT")
    for server in servers:
        # A Flight server listens once it is made, and its serve() would take the signal handlers over.
        if not isinstance(server, flight.Server):
            threading.Thread(target=server.serve_forever, daemon=True).start()
    # What is there by now stays, so collections of garbage need not look at it.
    gc.freeze()
    print(f"transship_server: ready, {len(functions)} functions", file=sys.stderr, flush=True)
    while signals.recv(1)[0] not in _ENDING:
        pass
    for server in servers:
        server.shutdown()
    end()


def end():
    """Ends the process, without taking the interpreter down: threads that are still in a library, such as gRPC's, would be unwound through
    its frames meanwhile, which can crash. Threads of the handler's that are no daemons end what they do, as in every program."""
    # Pools of concurrent.futures end here, too.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def catch_signals():
    """A socket that gives the number of each signal. A wait of Python's own may sleep through a signal that comes just before
    it, or to another thread."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach())
    for number in _ENDING:
        signal.signal(number, lambda *_: None)
    return reader


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "serve")
