"""Bytes per row of a shared table and of its index, beside the values themselves and an ordinary table with a B-tree."""

import pathlib
import sys

from sessions import unshare

# What is in a table -> key, and its columns; {rows} is the number of rows.
TABLES = {
    "bigint key, unique": "(i * 2654435761) % 4294967296 AS k, i AS a, 'name ' || i AS t",
    "bigint key, 10 rows each": "(i % ({rows} / 10) * 2654435761) % 4294967296 AS k, i AS a, 'name ' || i AS t",
    "text key of 20 characters, unique": "substr(md5(i::text), 1, 20) AS k, i AS a, 'name ' || i AS t",
    "text key of 20 characters, 10 rows each": "substr(md5((i % ({rows} / 10))::text), 1, 20) AS k, i AS a, 'name ' || i AS t",
}
VALUES = "sum(CASE pg_typeof(k) WHEN 'text'::regtype THEN octet_length(k::text) ELSE 8 END + 8 + octet_length(t))"


def files_of(connection, name):
    """Bytes of a table's segments and of their indexes, as the files in memory are."""
    query = "SELECT encode(digest, 'hex') FROM transship.table_segments WHERE relation = %s::regclass"
    sizes = {".arrow": 0, ".index": 0}
    for (digest,) in connection.execute(query, (name,)):
        for ending in sizes:
            files = list(pathlib.Path("/dev/shm").glob(f"transship-tables.*/{digest}{ending}"))
            if not files:
                sys.exit(f"{digest}{ending} is not in memory")
            sizes[ending] += files[0].stat().st_size
    return sizes.values()


def measure(connection, options):
    """A table of Markdown with bytes per row."""
    rows = options.rows
    lines = [f"| {rows:,} rows, bytes per row | values | table | B-tree | shared | its index | both, of the values |"]
    lines.append("|---|---|---|---|---|---|---|")
    for title, columns in TABLES.items():
        unshare(connection, "tables_memory%")
        connection.execute("DROP TABLE IF EXISTS tables_rows")
        connection.execute(f"CREATE UNLOGGED TABLE tables_rows AS SELECT {columns.format(rows=rows)} FROM generate_series(1, {rows}::bigint) i")
        connection.execute("CREATE INDEX ON tables_rows (k)")
        connection.execute("SELECT transship.share('tables_memory', 'TABLE tables_rows', 'k')")
        query = f"SELECT {VALUES}, pg_table_size('tables_rows'), pg_indexes_size('tables_rows') FROM tables_rows"
        values, heap, tree = (int(size) for size in connection.execute(query).fetchone())
        segments, index = files_of(connection, "tables_memory")
        sizes = [f"{size / rows:.1f}" for size in (values, heap, tree, segments, index)]
        lines.append(f"| {title} | " + " | ".join(sizes) + f" | {(segments + index) / values:.2f} |")
    unshare(connection, "tables_memory%")
    connection.execute("DROP TABLE tables_rows")
    return "\n".join(lines)
