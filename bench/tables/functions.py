"""A function of what a table has for a key: joined in SQL and sent, or looked up by the handler in the shared table."""

import functools
import pathlib

from images import build
from paired import seconds_of, table

FUNCTIONS = [
    """CREATE OR REPLACE FUNCTION tables_plus_one(a bigint) RETURNS bigint LANGUAGE container STABLE PARALLEL SAFE COST 1000
        AS 'image = "bench-tables:1.0" function = "plus_one"'""",
    """CREATE OR REPLACE FUNCTION tables_plus_one_of(k bigint) RETURNS bigint LANGUAGE container STABLE PARALLEL SAFE COST 1000
        AS 'image = "bench-tables:1.0" function = "plus_one_of" tables = ["tables_shared"]'""",
]
QUERIES = [
    ("hash join, then called", "SELECT sum(tables_plus_one(d.a)) FROM tables_part p JOIN tables_dims d USING (k)"),
    ("shared table joined, then called", "SELECT sum(tables_plus_one(d.a)) FROM tables_part p JOIN tables_shared d USING (k)"),
    ("looked up in the container", "SELECT sum(tables_plus_one_of(p.k)) FROM tables_part p"),
]


def prepare(connection):
    build(pathlib.Path(__file__).parent / "image")
    for statement in FUNCTIONS:
        connection.execute(statement)


def measure(connection, title, rounds):
    """A table of Markdown with the time of each way."""

    def ask(query):
        return connection.execute(query).fetchone()[0]

    contenders = [(name, functools.partial(ask, query), 1) for name, query in QUERIES]
    return table(title, [name for name, _ in QUERIES], [("s", seconds_of(contenders, rounds))])
