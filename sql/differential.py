"""Do batched calls change any result?  differential.py [QUERIES [SEED]]

Random queries hold the same functions twice, once in PL/pgSQL and once in a container, of equal strictness, volatility
and cost, in random places. Both forms must give the same rows, or both must fail. Connects as libpq's variables say, to a
database in which sql/setup.sql was run.
"""

import random
import sys

import psycopg

QUERIES = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1

# name, arguments, result, clauses, PL/pgSQL body, Python body
FUNCTIONS = [
    ("inc", ["bigint"], "bigint", "IMMUTABLE STRICT", "RETURN a1 + 1;", "return a1 + 1"),
    ("add", ["bigint", "bigint"], "bigint", "IMMUTABLE STRICT", "RETURN a1 + a2;", "return a1 + a2"),
    ("pick", ["bigint", "bigint"], "bigint", "STABLE", "RETURN coalesce(a1, a2);", "return a2 if a1 is None else a1"),
    ("even", ["bigint"], "boolean", "IMMUTABLE STRICT", "RETURN a1 % 2 = 0;", "return a1 % 2 == 0"),
    ("label", ["bigint"], "text", "IMMUTABLE", "RETURN coalesce('n' || a1, 'none');",
     "return 'none' if a1 is None else f'n{a1}'"),
    ("echo", ["bigint"], "bigint", "VOLATILE", "RETURN a1;", "return a1"),
    ("both", ["bigint", "bigint"], "d_row", "IMMUTABLE", "RETURN ROW(a1, a2, a1 + a2)::d_row;",
     "return a1, a2, None if a1 is None or a2 is None else a1 + a2"),
    ("many", ["bigint"], "SETOF d_row", "STABLE STRICT", "RETURN QUERY SELECT i::bigint, a1, i % 2 FROM generate_series(1, least(a1, 4)) i;",
     "yield from ((i, a1, i % 2) for i in range(1, min(a1, 4) + 1))"),
    ("upto", ["bigint"], "SETOF bigint", "IMMUTABLE STRICT", "RETURN QUERY SELECT generate_series(1, a1 % 5);",
     "yield from range(1, (a1 % 5 if a1 >= 0 else 0) + 1)"),
    ("fail", ["bigint"], "bigint", "IMMUTABLE STRICT", "RETURN 100 / (a1 - 7);", "return int(100 / (a1 - 7))"),
]  # fmt: skip

SETUP = """
DROP TABLE IF EXISTS d1, d2, d3 CASCADE;
DROP TYPE IF EXISTS d_row CASCADE;
CREATE TYPE d_row AS (id bigint, a bigint, b bigint);
SELECT setseed(0.25);
CREATE TABLE d1 AS SELECT i AS id, nullif((random() * 20)::bigint, 13) AS a, nullif((random() * 9)::bigint, 4) AS b
  FROM generate_series(1, 400) i;
CREATE TABLE d2 AS SELECT i AS id, nullif((random() * 30)::bigint, 3) AS a, (random() * 5)::bigint AS b
  FROM generate_series(1, 60) i;
CREATE TABLE d3 (id int, a bigint, b bigint) PARTITION BY HASH (id);
CREATE TABLE d3_0 PARTITION OF d3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE d3_1 PARTITION OF d3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO d3 SELECT id, a, b FROM d1 WHERE id <= 150;
CREATE INDEX ON d1 (a);
CREATE INDEX ON d2 (a);
ANALYZE d1, d2, d3
"""


def set_up(connection):
    for statement in SETUP.split(";\n"):
        connection.execute(statement)
    source = ""
    for name, arguments, _, _, _, python in FUNCTIONS:
        source += f"def c_{name}({', '.join(f'a{i + 1}' for i in range(len(arguments)))}):\n    {python}\n"
    for name, arguments, result, clauses, body, _ in FUNCTIONS:
        signature = ", ".join(f"a{i + 1} {kind}" for i, kind in enumerate(arguments))
        for prefix, language, text in (
            ("p_", "plpgsql", f"BEGIN {body} END"),
            ("c_", "container", f"template = \"python\"\nsource = '''\n{source}'''"),
        ):
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {prefix}{name}({signature}) RETURNS {result} LANGUAGE {language} {clauses} "
                f"PARALLEL SAFE COST 1000 AS $f${text}$f$"
            )


class Generator:
    """Random queries; a call is written %name(...), to be replaced by one form or the other."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        # Under LIMIT and EXISTS a batch may hold rows that are never asked for, so nothing may fail there.
        self.may_fail = True

    def one_of(self, *choices):
        return self.random.choice(choices)

    def number(self, tables, depth):
        table = self.one_of(*tables)
        leaf = [lambda: f"{table}.a", lambda: f"{table}.b", lambda: f"{table}.a", lambda: str(self.random.randint(-2, 12))]
        if depth == 0:
            return self.one_of(*leaf)()
        deeper = lambda: self.number(tables, depth - 1)  # noqa: E731
        call = [
            lambda: f"%inc({deeper()})",
            lambda: f"%add({deeper()}, {deeper()})",
            lambda: f"%pick({deeper()}, {deeper()})",
            lambda: f"%echo({deeper()})",
            lambda: f"(%both({deeper()}, {deeper()})).{self.one_of('id', 'a', 'b')}",
        ]
        if self.may_fail:
            call.append(lambda: f"CASE WHEN {deeper()} <> 7 THEN %inc({deeper()}) ELSE %fail({deeper()}) END")
            call.append(lambda: f"CASE WHEN {table}.a <> 7 THEN %fail({table}.a) END")
        other = [
            lambda: f"({deeper()} {self.one_of('+', '-', '*')} {deeper()})",
            lambda: f"CASE WHEN {self.condition(tables, depth - 1)} THEN {deeper()} ELSE {deeper()} END",
            lambda: f"CASE WHEN {table}.b <> 0 THEN %inc({table}.a / {table}.b) END",
            lambda: f"coalesce({deeper()}, {deeper()})",
            lambda: f"nullif({deeper()}, {deeper()})",
            lambda: f"greatest({deeper()}, {deeper()})",
            lambda: f"length(%label({deeper()}))",
            lambda: f"(SELECT max({self.number([*tables, 's'], 1)}) FROM d2 s WHERE s.b = {table}.b)",
        ]
        return self.one_of(*call, *call, *other, *leaf)()

    def condition(self, tables, depth):
        number = lambda: self.number(tables, depth)  # noqa: E731
        simple = [
            lambda: f"{number()} {self.one_of('<', '>', '=', '<>', '>=')} {number()}",
            lambda: f"%even({number()})",
            lambda: f"{number()} IS {self.one_of('', 'NOT ')}NULL",
            lambda: f"{number()} IN ({number()}, {number()}, 3)",
            lambda: f"%label({number()}) {self.one_of('<', '>')} 'n2'",
        ]
        if depth == 0:
            return self.one_of(*simple)()
        part = lambda: self.condition(tables, depth - 1)  # noqa: E731
        return self.one_of(
            *simple,
            lambda: f"({part()} AND {part()})",
            lambda: f"({part()} OR {part()})",
            lambda: f"NOT ({part()})",
            lambda: f"EXISTS (SELECT 1 FROM d2 e WHERE e.a = {tables[0]}.a AND e.b < 3)",
        )()

    def aggregate(self, tables):
        number = self.number(tables, 2)
        return self.one_of(
            f"sum({number})", f"count({number})", f"min({number})", f"count(DISTINCT {number})",
            f"sum({number}) FILTER (WHERE {self.condition(tables, 1)})", f"string_agg(%label({number}), ',' ORDER BY {number}, {tables[0]}.id)",
        )  # fmt: skip

    def source(self):
        """FROM clause and the names in it."""
        d = self.one_of("d1", "d1", "d2", "d3")
        return self.one_of(
            lambda: (f"{d} x", ["x"]),
            lambda: (f"{d} x", ["x"]),
            lambda: (f"d1 x JOIN d2 y ON x.a = y.a AND {self.condition(['x', 'y'], 1)}", ["x", "y"]),
            lambda: (f"d1 x JOIN d2 y ON %inc(x.b) = y.b", ["x", "y"]),
            lambda: (f"d1 x LEFT JOIN d2 y ON x.a = y.a AND {self.condition(['x', 'y'], 1)}", ["x", "y"]),
            lambda: (f"d2 x FULL JOIN d3 y ON x.a = y.a", ["x", "y"]),
            lambda: (f"(SELECT id, {self.number(['z'], 2)} AS a, b FROM d1 z WHERE {self.condition(['z'], 1)}) x", ["x"]),
            lambda: (f"(SELECT id, a, %inc(b) AS b FROM d1 UNION ALL SELECT id, %inc(a), b FROM d3) x", ["x"]),
            lambda: (f"d2 x, LATERAL (SELECT z.id, {self.number(['x', 'z'], 2)} AS a, z.b FROM d2 z WHERE z.b = x.b) y", ["x", "y"]),
            lambda: (f"d2 x, %both(x.a, {self.number(['x'], 1)}) y", ["x", "y"]),
            lambda: (f"d2 x, %many({self.number(['x'], 1)}) y", ["x", "y"]),
            lambda: (f"d1 x LEFT JOIN LATERAL %many({self.number(['x'], 1)}) y ON {self.one_of('true', 'true', 'y.b = 1')}", ["x", "y"]),
            lambda: (f"(SELECT id, %upto({self.number(['z'], 1)}) AS a, {self.number(['z'], 1)} AS b FROM d2 z) x", ["x"]),
            lambda: (f"(SELECT id, (%many({self.number(['z'], 1)})).a, b FROM d2 z WHERE {self.condition(['z'], 1)}) x", ["x"]),
            lambda: (f"(SELECT DISTINCT ON (%even(a), b) id, a, b FROM d1 ORDER BY %even(a), b, id) x", ["x"]),
        )()

    def query(self):
        limit = ""
        self.may_fail = self.random.random() < 0.5
        if self.random.random() < 0.25:
            self.may_fail = False
            limit = f" LIMIT {self.random.randint(0, 30)}"
        source, tables = self.source()
        where = f" WHERE {self.condition(tables, 2)}" if self.random.random() < 0.6 else ""
        shape, width = self.random.random(), len(tables)
        if shape < 0.3:
            group = self.one_of(f"{tables[0]}.b", f"%inc({tables[0]}.b)", f"%even({tables[0]}.a)")
            having = f" HAVING %inc(count(*)) > {self.random.randint(0, 20)}" if self.random.random() < 0.4 else ""
            return (
                f"SELECT {group} AS g, {self.aggregate(tables)}, %inc({self.one_of('count(*)', f'max({tables[0]}.a)')}) FROM {source}{where} "
                f"GROUP BY 1{having} ORDER BY 1{limit}"
            )
        ids = ", ".join(f"{name}.id" for name in tables)
        if shape < 0.4:
            partition = f"PARTITION BY {tables[0]}.b ORDER BY {ids}"
            return f"SELECT {ids}, sum({self.number(tables, 2)}) OVER ({partition}) FROM {source}{where} ORDER BY {ids}, {width + 1}{limit}"
        columns = [self.number(tables, self.random.randint(1, 3)) for _ in range(self.random.randint(1, 3))]
        if shape < 0.5:
            return f"WITH w AS MATERIALIZED (SELECT {ids.split(',')[0]} AS id, {self.number(tables, 2)} AS a FROM {source}{where}) " \
                   f"SELECT id, %inc(a), a FROM w ORDER BY id, a{limit}"  # fmt: skip
        order = f" ORDER BY {ids}" if self.random.random() < 0.5 else f" ORDER BY {self.number(tables, 1)}"
        if limit:
            # Every column, so that rows with equal ids do not make the answer a matter of chance.
            order = " ORDER BY " + ", ".join(str(i + 1) for i in range(width + len(columns)))
        return f"SELECT {ids}, {', '.join(columns)} FROM {source}{where}{order}{limit}"

    def settings(self):
        """Ways to plan and to batch that must not matter."""
        names = ["enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_seqscan", "enable_hashagg", "enable_memoize"]
        settings = {name: self.one_of("on", "on", "off") for name in names}
        settings["max_parallel_workers_per_gather"] = self.one_of("0", "0", "2")
        settings["transship.batch_rows"] = self.one_of("1", "7", "10000", "10000")
        settings["transship.batch_window"] = self.one_of("1", "3")
        settings["transship.transport"] = self.one_of("flight", "flight", "json")
        settings["jit"] = "off"
        return settings


def run(connection, query):
    try:
        # An error in one form may come before rows that the other would have sent, so rows count only as a whole.
        rows = connection.execute(query).fetchall()
        return "rows", sorted(map(repr, rows))
    except psycopg.Error as error:
        return "failure", error.sqlstate


def difference(expected, found):
    """The first few rows that only one form gave, or the outcomes."""
    if "failure" in (expected[0], found[0]):
        return f"PL/pgSQL: {str(expected)[:200]}\ncontainer: {str(found)[:200]}"
    only = [sorted(set(one) - set(other))[:5] for one, other in ((expected[1], found[1]), (found[1], expected[1]))]
    return f"only PL/pgSQL: {only[0]}\nonly container: {only[1]}"


def main():
    generator = Generator(SEED)
    rows, failures, batched = 0, 0, 0
    with psycopg.connect("", autocommit=True) as connection:
        set_up(connection)
        for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            connection.execute(f"SET {name} = 0")
        connection.execute("SET statement_timeout = '60s'")
        for number in range(QUERIES):
            query = generator.query()
            settings = generator.settings()
            for name, value in settings.items():
                connection.execute(f"SET {name} = '{value}'")
            expected = run(connection, query.replace("%", "p_"))
            found = run(connection, query.replace("%", "c_"))
            if expected[0] != found[0] or (expected[0] == "rows" and expected != found):
                sys.exit(f"query {number} of seed {SEED} differs\n{query}\nwith {settings}\n{difference(expected, found)}")
            plan = connection.execute("EXPLAIN " + query.replace("%", "c_")).fetchall() if expected[0] == "rows" else []
            batched += any("Container Batch" in line for (line,) in plan)
            rows += expected[0] == "rows"
            failures += expected[0] == "failure"
    print(f"{QUERIES} queries gave the same: {rows} with rows ({batched} of them with batches), {failures} with failures")


if __name__ == "__main__":
    main()
