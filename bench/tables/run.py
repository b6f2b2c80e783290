"""How fast are joins with a shared table, and appends to one?  run.py [PROBES [ROUNDS [KEYS...]]]

Contenders take turns as bench/paired.py says; the first is PostgreSQL's hash join of ordinary tables. The results replace the part
of bench/README.md between the markers.
"""

import datetime
import functools
import os
import pathlib
import statistics
import sys
import threading
import time

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import flights  # noqa: E402
import functions  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

PROBES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
KEYS = [int(keys) for keys in sys.argv[3:]] or [100_000, 1_000_000]
FEW = 10_000
APPENDS = 200
READS = 300

HASH = {"enable_nestloop": "off", "enable_mergejoin": "off"}
BY_KEY = {"enable_hashjoin": "off", "enable_mergejoin": "off"}


def connect():
    connection = psycopg.connect("", autocommit=True, prepare_threshold=None)
    connection.execute("SET max_parallel_workers_per_gather = 0")
    connection.execute("SET work_mem = '1GB'")
    connection.execute("SET jit = off")
    # It would remember keys that come twice, of which there are none to speak of.
    connection.execute("SET enable_memoize = off")
    return connection


def prepare(connection, keys):
    """A table of so many keys in no order, the same shared, and probes of which nine in ten find one."""
    connection.execute("DROP TABLE IF EXISTS tables_probes, tables_few, tables_dims")
    connection.execute("SELECT transship.unshare(relid) FROM transship.shared_tables WHERE name LIKE 'tables_%'")
    # A bijection of the numbers below 2^32.
    connection.execute(f"""CREATE TABLE tables_dims AS
        SELECT (i * 2654435761) % 4294967296 AS k, i AS a, 'name ' || i AS t FROM generate_series(1, {keys}::bigint) i""")
    connection.execute("CREATE UNIQUE INDEX ON tables_dims (k)")
    connection.execute(f"""CREATE TABLE tables_probes AS
        SELECT i, (1 + (i * 7919) % {keys * 10 // 9}) * 2654435761 % 4294967296 AS k FROM generate_series(1, {PROBES}::bigint) i""")
    connection.execute(f"CREATE TABLE tables_few AS SELECT * FROM tables_probes WHERE i <= {FEW}")
    connection.execute("VACUUM ANALYZE tables_dims, tables_probes, tables_few")
    start = time.perf_counter()
    connection.execute("SELECT transship.share('tables_shared', 'TABLE tables_dims', 'k')")
    shared = time.perf_counter() - start
    start = time.perf_counter()
    connection.execute("SELECT FROM tables_shared WHERE k = 0")
    return shared, time.perf_counter() - start


def ask(connection, probes, joined, settings):
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    total = connection.execute(f"SELECT sum(d.a) FROM {probes} p, {joined}").fetchone()[0]
    for name in settings:
        connection.execute(f"RESET {name}")
    return total


def joins(connection, probes):
    dims, shared = "tables_dims d WHERE d.k = p.k", "tables_shared d WHERE d.k = p.k"
    lookup = "transship.lookup('tables_shared', p.k) AS d (k bigint, a bigint, t text)"
    for name, joined, settings in [
        ("hash join", dims, HASH),
        ("nested loop, B-tree", dims, BY_KEY),
        ("shared table, by key", shared, BY_KEY),
        ("shared table, hash join", shared, HASH),
        ("shared table, as the planner likes", shared, {}),
        ("`transship.lookup`", lookup, {}),
    ]:
        yield name, functools.partial(ask, connection, probes, joined, settings), 1


def memory(connection, keys):
    heap, index = connection.execute("SELECT pg_table_size('tables_dims'), pg_indexes_size('tables_dims')").fetchone()
    (segments,) = connection.execute("SELECT bytes FROM transship.shared_tables WHERE name = 'tables_shared'").fetchone()
    return f"{keys:,} rows: {heap / keys:.0f} bytes per row as a table and {index / keys:.0f} in its B-tree; {segments / keys:.0f} shared."


def appends(connection):
    """Rows per second of appends, and how long a read by key takes meanwhile."""
    reader = connect()

    def read():
        start = time.perf_counter()
        reader.execute("SELECT a FROM tables_shared WHERE k = 5").fetchall()
        return time.perf_counter() - start

    alone = [read() for _ in range(READS)]
    is_done, meanwhile = threading.Event(), []

    def keep_reading():
        while not is_done.is_set():
            meanwhile.append(read())

    thread = threading.Thread(target=keep_reading)
    thread.start()
    start = time.perf_counter()
    for number in range(APPENDS):
        connection.execute(f"""SELECT transship.append('tables_shared',
            'SELECT i + {number} * 1000000000::bigint AS k, i AS a, ''more '' || i AS t FROM generate_series(1, 1000::bigint) i')""")
    small = APPENDS * 1000 / (time.perf_counter() - start)
    is_done.set()
    thread.join()
    start = time.perf_counter()
    connection.execute("""SELECT transship.append('tables_shared',
        'SELECT i AS k, i AS a, ''more '' || i AS t FROM generate_series(1, 1000000::bigint) i')""")
    large = 1_000_000 / (time.perf_counter() - start)
    segments = connection.execute("SELECT segments FROM transship.shared_tables WHERE name = 'tables_shared'").fetchone()[0]
    reader.close()
    percentile = statistics.quantiles(meanwhile, n=100)[98]
    return (
        f"Appends of 1,000 rows: {small:,.0f} rows per second; of 1,000,000: {large:,.0f}. {segments} segments afterwards. A read by key "
        f"takes {statistics.median(alone) * 1e3:.2f} ms alone, and {statistics.median(meanwhile) * 1e3:.2f} ms while small appends run "
        f"(99 % below {percentile * 1e3:.1f} ms)."
    )


def main():
    with connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
        functions.prepare(connection)
        parts = []
        for keys in KEYS:
            shared, loaded = prepare(connection, keys)
            columns = []
            for probes, count in [("tables_probes", PROBES), ("tables_few", FEW)]:
                contenders = list(joins(connection, probes))
                columns.append((f"{count:,} probes, s", seconds_of(contenders, ROUNDS)))
            parts.append(table(f"{keys:,} keys", [name for name, _, _ in contenders], columns))
            parts.append(functions.measure(connection, f"a function of {PROBES:,} rows, {keys:,} keys", ROUNDS))
            parts.append(f"Sharing took {shared:.2f} s, and the first read {loaded:.2f} s. {memory(connection, keys)}")
        parts.append(appends(connection))
        parts.append(flights.measure(connection, ROUNDS))
        connection.execute("SELECT transship.unshare('tables_shared')")
        connection.execute("DROP TABLE tables_probes, tables_few, tables_dims")
    head = (
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores; "
        f"no parallel workers, work_mem 1 GB, without JIT and memoize nodes."
    )
    text = "\n\n".join([head, *parts])
    print(text)
    write_section("tables", text)


if __name__ == "__main__":
    main()
