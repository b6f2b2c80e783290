"""What does a container cost that runs elsewhere?  run.py [ROWS [ROUNDS]]

The paper's section 6: the same functions in a local container and behind a network. The far server is the same template in a
network namespace of its own, with a veth pair between; tc limits its bandwidth (tbf), and delays it where the kernel has
netem. Where it has not, a relay passes each piece of data on after the delay, in both directions, without holding up those
behind it. Delays are per way: a round trip takes twice as long.

Contenders run in turn, round by round, after one round of warm-up that does not count. A ratio is the median of the per-round
ratios to the local container. All must give the same sum. Needs root.
"""

import asyncio
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from paired import table  # noqa: E402
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
ROOT = pathlib.Path(__file__).parents[2]
IMAGE = ROOT / "bench/overhead/image"
NAMESPACE, NEAR, FAR = "transship-far", "tsnear", "tsfar"
NEAR_ADDRESS, FAR_ADDRESS = "10.231.77.1", "10.231.77.2"
PORT = 8815
DELAYS_MS = [0, 1, 5, 20]
RATES = ["1gbit", "100mbit"]
COLUMNS = [f"f{i}" for i in range(28)]
ARGUMENTS = ", ".join(f"{name} float8" for name in COLUMNS)
QUERIES = {
    "x + 1": "SELECT sum(add_one_batch{}(f0)) FROM remote_rows",
    "random forest, 10 trees, 28 inputs": f"SELECT sum(forest{{}}({', '.join(COLUMNS)})) FROM remote_rows",
}


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def far_server():
    """A server in a namespace of its own, with everything around it."""
    folder = pathlib.Path(tempfile.mkdtemp())
    shutil.copytree(IMAGE, folder / "function")
    with open(IMAGE / "transship.toml", "rb") as file:
        (folder / "manifest.json").write_text(json.dumps({"handler": "handler.py"} | tomllib.load(file)))
    run("ip", "netns", "add", NAMESPACE)
    server = None
    try:
        run("ip", "link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", NAMESPACE)
        run("ip", "addr", "add", f"{NEAR_ADDRESS}/30", "dev", NEAR)
        run("ip", "link", "set", NEAR, "up")
        for words in (["addr", "add", f"{FAR_ADDRESS}/30", "dev", FAR], ["link", "set", FAR, "up"], ["link", "set", "lo", "up"]):
            run("ip", "-n", NAMESPACE, *words)
        environment = os.environ | {
            "TRANSSHIP_ROOT": str(folder),
            "PYTHONPATH": str(ROOT / "container_templates/python"),
            "TRANSSHIP_FLIGHT_PORT": str(PORT),
        }
        words = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-m", "transship_server", "serve"]
        server = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        wait_for(FAR_ADDRESS, PORT)
        yield
    finally:
        if server:
            server.terminate()
            server.wait()
        # The other end goes with it.
        subprocess.run(["ip", "link", "del", NEAR], check=False)
        run("ip", "netns", "del", NAMESPACE)
        shutil.rmtree(folder)


def wait_for(address, port):
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), 1).close()
            return
        time.sleep(0.1)
    sys.exit("the far server does not answer")


def shape(rate, delay_ms):
    """Limits both ways, and delays them if the kernel can; whether it could."""
    for prefix, device in ((["tc"], NEAR), (["tc", "-n", NAMESPACE], FAR)):
        subprocess.run([*prefix, "qdisc", "del", "dev", device, "root"], check=False, capture_output=True)
        netem = ["qdisc", "add", "dev", device, "root", "netem", "delay", f"{delay_ms}ms", "rate", rate, "limit", "100000"]
        if subprocess.run([*prefix, *netem], check=False, capture_output=True).returncode == 0:
            continue
        run(*prefix, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
    return "netem" in run("tc", "qdisc", "show", "dev", NEAR).stdout


class Relay:
    """Passes connections on to the far server; every piece arrives `delay` seconds after it came."""

    def __init__(self):
        self.delay = 0.0
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    async def _accept(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection(FAR_ADDRESS, PORT)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader, writer):
        queue = asyncio.Queue(10_000)

        async def send():
            while (item := await queue.get()) is not None:
                due, data = item
                if (wait := due - self.loop.time()) > 0:
                    await asyncio.sleep(wait)
                writer.write(data)
                await writer.drain()
            writer.close()

        sender = asyncio.create_task(send())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                await queue.put((self.loop.time() + self.delay, data))
        await queue.put(None)
        with contextlib.suppress(ConnectionError):
            await sender


def set_up(connection, relay_port):
    connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
    connection.execute("DROP TABLE IF EXISTS remote_rows")
    connection.execute("SELECT setseed(0.5)")
    random = ", ".join(f"random() AS {name}" for name in COLUMNS)
    connection.execute(f"CREATE TABLE remote_rows AS SELECT {random} FROM generate_series(1, {ROWS})")
    connection.execute("VACUUM ANALYZE remote_rows")
    places = {"": 'image = "bench-overhead:1.0"', "_far": f'endpoint = "grpc://{FAR_ADDRESS}:{PORT}"', "_relayed": f'endpoint = "grpc://127.0.0.1:{relay_port}"'}
    for suffix, place in places.items():
        for name, arguments in (("add_one_batch", "x float8"), ("forest", ARGUMENTS)):
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {name}{suffix}({arguments}) RETURNS float8 LANGUAGE container IMMUTABLE STRICT COST 1000 "
                f"""AS '{place} function = "{name}"'"""
            )


def measure(query, relay):
    """Seconds per contender and round, and what made the delays."""
    contenders = [("local container", None, None)]
    contenders += [(f"far, {delay} ms, {rate}", rate, delay) for rate in RATES for delay in DELAYS_MS]
    seconds, sums, means = [[] for _ in contenders], set(), "netem"
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        for round_number in range(ROUNDS + 1):
            for i, (_, rate, delay) in enumerate(contenders):
                suffix = ""
                if rate:
                    is_delayed = shape(rate, delay)
                    relay.delay = 0 if is_delayed else delay / 1000
                    suffix = "_far" if is_delayed or delay == 0 else "_relayed"
                    means = "netem" if is_delayed else "a relay (this kernel has no netem)"
                start = time.perf_counter()
                [value] = connection.execute(query.format(suffix)).fetchone()
                if round_number:
                    seconds[i].append(time.perf_counter() - start)
                sums.add(round(value, 6))
    if len(sums) != 1:
        sys.exit(f"the contenders give {sums}")
    return [name for name, _, _ in contenders], seconds, means


def main():
    relay = Relay()
    with far_server():
        with psycopg.connect("", autocommit=True) as connection:
            set_up(connection, relay.port)
            version = connection.execute("SHOW server_version").fetchone()[0].split()[0]
        parts = []
        for udf, query in QUERIES.items():
            print(f"==> {udf}", file=sys.stderr)
            names, seconds, means = measure(query, relay)
            parts.append(f"### {udf}\n\n{table('contender', names, [('s, median [least-most]', seconds)])}")
    head = (
        f"{datetime.date.today()}, {ROWS:,} rows, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, Linux {platform.release()}, "
        f"PostgreSQL {version}, local runtime {os.environ['BENCH_RUNTIME']}; delays per way, by {means}; no parallel workers."
    )
    text = "\n\n".join([head, *parts])
    print(text)
    write_section("remote", text)


if __name__ == "__main__":
    main()
