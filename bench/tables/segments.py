"""Reads of the same rows in 1, 4, 16 and 64 segments. Nobody can set the size of a segment: it ends after 128 MB of values or some four
million rows. So these are made by as many appends. An append would merge small segments; none does while somebody analyzes the table."""

import functools
import statistics
import sys
import time

from sessions import connect, segments_of, unshare
from paired import seconds_of, table

COUNTS = [1, 4, 16, 64]
PROBES = 100_000
READS = 200


def query_of(first, last):
    return f"SELECT (i * 2654435761) % 4294967296 AS k, i AS a, ''name '' || i AS t FROM generate_series({first}, {last}::bigint) i"


def share(connection, name, rows, count):
    """A table of so many segments, each of as many rows."""
    part = rows // count
    connection.execute(f"SELECT transship.share('{name}', '{query_of(1, part)}', 'k')")
    with connect() as other, other.transaction():
        # The lock that whoever merges takes as well; it is held until the transaction ends.
        other.execute(f"ANALYZE {name}")
        for number in range(1, count):
            connection.execute(f"SELECT transship.append('{name}', '{query_of(number * part + 1, (number + 1) * part)}')")
    connection.execute(f"ANALYZE {name}")
    if segments_of(connection, name) != count:
        sys.exit(f"{name} has {segments_of(connection, name)} segments, not {count}")


def reads(connection, name, rows):
    """Reads of one key each; the median of their seconds."""
    seconds, total = [], 0
    for number in range(1, READS + 1):
        key = number * 7919 % rows + 1
        start = time.perf_counter()
        found = connection.execute(f"SELECT a FROM {name} WHERE k = ({key} * 2654435761) % 4294967296").fetchall()
        seconds.append(time.perf_counter() - start)
        total += found[0][0]
    return total, statistics.median(seconds)


def ask(connection, query):
    return connection.execute(query).fetchone()[0]


def measure(connection, options):
    """A table of Markdown: by number of segments, what reads of one key, a join by key and a scan take."""
    rows = 2 * options.rows
    unshare(connection, "tables_segments_%")
    connection.execute("DROP TABLE IF EXISTS tables_probes")
    connection.execute(f"""CREATE UNLOGGED TABLE tables_probes AS
        SELECT ((i * 7919) % {rows} + 1) * 2654435761 % 4294967296 AS k FROM generate_series(1, {PROBES}::bigint) i""")
    connection.execute("VACUUM ANALYZE tables_probes")
    names = {count: f"tables_segments_{count}" for count in COUNTS}
    for count, name in names.items():
        share(connection, name, rows, count)
    (size,) = connection.execute("SELECT bytes FROM transship.shared_tables WHERE name = %s", (names[1],)).fetchone()
    for setting in ("enable_hashjoin", "enable_mergejoin"):
        connection.execute(f"SET {setting} = off")
    queries = {
        f"join by key, {PROBES:,} probes, s": "SELECT sum(d.a) FROM tables_probes p JOIN {} d USING (k)",
        "scan, s": "SELECT sum(a) FROM {}",
    }
    contenders = [(name, functools.partial(reads, connection, name, rows), 1) for name in names.values()]
    columns = [("read of one key, s", seconds_of(contenders, options.rounds))]
    for title, query in queries.items():
        contenders = [(name, functools.partial(ask, connection, query.format(name)), 1) for name in names.values()]
        columns.append((title, seconds_of(contenders, options.rounds)))
    for setting in ("enable_hashjoin", "enable_mergejoin"):
        connection.execute(f"RESET {setting}")
    unshare(connection, "tables_segments_%")
    connection.execute("DROP TABLE tables_probes")
    titles = [f"{count} of {size / count / 1e6:.3g} MB" for count in COUNTS]
    return table(f"{rows:,} rows, segments", titles, columns)
