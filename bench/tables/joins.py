"""A join of probes with a table of unique keys: PostgreSQL's own ways, a shared table, and Spark."""

import contextlib
import functools
import time

import functions
from sessions import unshare
from paired import seconds_of, table
from spark import Spark

FEW = 10_000
HASH = {"enable_nestloop": "off", "enable_mergejoin": "off"}
BY_KEY = {"enable_hashjoin": "off", "enable_mergejoin": "off"}
# A bijection of the numbers below 2^32: keys are in no order. Spark's SQL takes the same formulas.
DIMS = "(i * 2654435761) % 4294967296 AS k, i AS a"
PROBES = "(1 + (i * 7919) % {most}) * 2654435761 % 4294967296 AS k"


def probes_of(keys):
    """The formula of probes of which nine in ten find a key."""
    return PROBES.format(most=keys * 10 // 9)


def prepare(connection, keys, probes):
    """A table of so many keys, the same shared, and probes; seconds to share it, and to read it for the first time."""
    drop(connection)
    # The log of writes would take more of the disk than the tables.
    connection.execute(f"CREATE UNLOGGED TABLE tables_dims AS SELECT {DIMS}, 'name ' || i AS t FROM generate_series(1, {keys}::bigint) i")
    connection.execute("CREATE UNIQUE INDEX ON tables_dims (k)")
    connection.execute(f"CREATE UNLOGGED TABLE tables_probes AS SELECT i, {probes_of(keys)} FROM generate_series(1, {probes}::bigint) i")
    for name, count in [("tables_part", probes // 10), ("tables_few", min(FEW, probes))]:
        connection.execute(f"CREATE UNLOGGED TABLE {name} AS SELECT * FROM tables_probes WHERE i <= {count}")
    connection.execute("VACUUM ANALYZE tables_dims, tables_probes, tables_part, tables_few")
    start = time.perf_counter()
    connection.execute("SELECT transship.share('tables_shared', 'TABLE tables_dims', 'k')")
    shared = time.perf_counter() - start
    start = time.perf_counter()
    connection.execute("SELECT FROM tables_shared WHERE k = 0")
    return shared, time.perf_counter() - start


def drop(connection):
    connection.execute("DROP TABLE IF EXISTS tables_probes, tables_part, tables_few, tables_dims")
    unshare(connection, "tables_shared")


def ask(connection, probes, joined, settings):
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    start = time.perf_counter()
    total = connection.execute(f"SELECT sum(d.a) FROM {probes} p, {joined}").fetchone()[0]
    seconds = time.perf_counter() - start
    for name in settings:
        connection.execute(f"RESET {name}")
    return total, seconds


def contenders(connection, spark, probes):
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
    if spark:
        yield "Spark, both cached, broadcast join, two cores", functools.partial(spark.join, probes), 1


def measure(connection, options):
    """Tables of Markdown, for each number of keys."""
    functions.prepare(connection)
    parts = []
    with Spark() if options.spark else contextlib.nullcontext() as spark:
        for keys in options.keys:
            shared, loaded = prepare(connection, keys, options.probes)
            counts = {"tables_probes": options.probes, "tables_few": min(FEW, options.probes)}
            if spark:
                spark.load(f"{DIMS}, concat('name ', i) AS t", keys, probes_of(keys), counts)
            columns = []
            for probes, count in counts.items():
                several = list(contenders(connection, spark, probes))
                columns.append((f"{count:,} probes, s", seconds_of(several, options.rounds)))
            parts.append(table(f"{keys:,} keys", [name for name, _, _ in several], columns))
            title = f"a function of {options.probes // 10:,} rows, {keys:,} keys"
            parts.append(functions.measure(connection, title, options.rounds))
            parts.append(f"Sharing {keys:,} rows took {shared:.2f} s, and the first read {loaded * 1e3:.1f} ms.")
    drop(connection)
    return "\n\n".join(parts)

