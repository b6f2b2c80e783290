"""Aggregates whose steps run in containers, and map functions, each beside its twin in PL/pgSQL.

Of the aggregates, total takes rows in any order and merges the states of parallel workers. gather shows the order.
"""

from script import Step
from sessions import twins

# What a map function makes of the rows of a query with a column x.
MAPS = {
    "running": ("x bigint, total bigint", "SELECT x, (sum(coalesce(x, 0)) OVER (ROWS UNBOUNDED PRECEDING))::bigint FROM (%s) s(x)"),
    "heads": ("x bigint", "SELECT x FROM (%s) s(x) LIMIT 3"),
    "repeated": ("x bigint, i bigint", "SELECT x, i FROM (%s) s(x), generate_series(1::bigint, (coalesce(x, 0) %% 3 + 3) %% 3) i"),
}
SETUP = """
DROP AGGREGATE IF EXISTS p_total (bigint);
DROP AGGREGATE IF EXISTS p_gather (bigint);
DROP AGGREGATE IF EXISTS c_total (bigint);
DROP AGGREGATE IF EXISTS c_gather (bigint);
CREATE OR REPLACE FUNCTION p_total_step(s bigint[], x bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
  $f$ BEGIN RETURN ARRAY[s[1] + 1, s[2] + (x IS NULL)::int, s[3] + coalesce(x, 0)]; END $f$;
CREATE OR REPLACE FUNCTION p_total_merge(s bigint[], o bigint[]) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
  $f$ BEGIN RETURN ARRAY[s[1] + o[1], s[2] + o[2], s[3] + o[3]]; END $f$;
CREATE OR REPLACE FUNCTION p_total_end(s bigint[]) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
  $f$ BEGIN RETURN CASE WHEN s[1] > 0 THEN array_to_string(s, ' ') END; END $f$;
CREATE OR REPLACE FUNCTION p_gather_step(s text, x bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
  $f$ BEGIN RETURN concat(s || ',', coalesce(x::text, '-')); END $f$;
CREATE AGGREGATE p_total (bigint) (SFUNC = p_total_step, STYPE = bigint[], INITCOND = '{0,0,0}', FINALFUNC = p_total_end,
  COMBINEFUNC = p_total_merge, PARALLEL = SAFE);
CREATE AGGREGATE p_gather (bigint) (SFUNC = p_gather_step, STYPE = text);
CREATE OR REPLACE FUNCTION p_map(name text, query text) RETURNS SETOF record LANGUAGE plpgsql AS $f$ BEGIN RETURN QUERY EXECUTE CASE name
  {MAPS} END; END $f$;
CREATE OR REPLACE FUNCTION c_total_step(internal, bigint) RETURNS internal {TOTAL};
CREATE OR REPLACE FUNCTION c_total_merge(internal, internal) RETURNS internal {TOTAL};
CREATE OR REPLACE FUNCTION c_total_out(internal) RETURNS bytea STRICT {TOTAL};
CREATE OR REPLACE FUNCTION c_total_in(bytea, internal) RETURNS internal STRICT {TOTAL};
CREATE OR REPLACE FUNCTION c_total_end(internal) RETURNS text {TOTAL};
CREATE OR REPLACE FUNCTION c_gather_step(internal, bigint) RETURNS internal {GATHER};
CREATE OR REPLACE FUNCTION c_gather_end(internal) RETURNS text {GATHER};
CREATE AGGREGATE c_total (bigint) (SFUNC = c_total_step, STYPE = internal, FINALFUNC = c_total_end, COMBINEFUNC = c_total_merge,
  SERIALFUNC = c_total_out, DESERIALFUNC = c_total_in, PARALLEL = SAFE);
CREATE AGGREGATE c_gather (bigint) (SFUNC = c_gather_step, STYPE = internal, FINALFUNC = c_gather_end)
"""


def set_up(connection):
    body = lambda name: f"LANGUAGE container PARALLEL SAFE AS $$image = \"differential:1.0\" function = \"{name}\"$$"  # noqa: E731
    maps = " ".join(f"WHEN 'p_{name}' THEN format($m${query}$m$, query)" for name, (_, query) in MAPS.items())
    for statement in SETUP.split(";\n"):
        for word, text in (("{MAPS}", maps), ("{TOTAL}", body("total")), ("{GATHER}", body("gather"))):
            statement = statement.replace(word, text)
        connection.execute(statement)
    for name, (columns, _) in MAPS.items():
        result = "SETOF bigint" if name == "heads" else f"TABLE ({columns})"
        connection.execute(f"DROP FUNCTION IF EXISTS c_{name}")
        connection.execute(f"CREATE FUNCTION c_{name}(bigint) RETURNS {result} {body(name)}".replace("$$image", "$$kind = \"map\" image"))


def own_aggregates(queries):
    """Aggregates in containers: in groups and grouping sets, with FILTER, DISTINCT and ORDER BY, in subqueries."""
    queries.has_own_aggregates = True
    queries.settings["enable_partitionwise_aggregate"] = queries.one_of("on", "off")
    n = queries.integer
    source, tables = queries.source()
    aggregate = lambda: queries.aggregate(tables)  # noqa: E731
    group = queries.one_of(f"{tables[0]}.b", f"%inc({tables[0]}.b)", f"%even({tables[0]}.a)")
    where = queries.where(tables, 0.3)
    of_x = lambda: queries.aggregate(["x"])  # noqa: E731
    query = queries.one_of(
        lambda: queries.grouping_sets(),
        lambda: queries.grouping_sets(),
        lambda: f"SELECT {aggregate()}, {aggregate()}, %inc(count(*)) FROM {source}{where}",
        lambda: f"SELECT {group}, {aggregate()}, {aggregate()} FROM {source}{where} GROUP BY 1",
        lambda: f"SELECT {group}, {aggregate()} FROM {source}{where} GROUP BY 1 HAVING {aggregate()}::text > '{n(1, 9)}'",
        lambda: f"SELECT {group}, %up({aggregate()}::text) || {aggregate()}::text FROM {source}{where} GROUP BY 1 ORDER BY 1 LIMIT {n(0, 5)}",
        lambda: f"SELECT {aggregate()}, %seven() FROM {source} WHERE {tables[0]}.id < 0",
        lambda: f"SELECT y.id, (SELECT {of_x()} FROM {queries.one_of('d1', 'd3')} x WHERE x.b = y.b AND x.a > y.a) FROM d2 y",
        lambda: f"SELECT y.id, f.* FROM d2 y LEFT JOIN LATERAL (SELECT x.b, {of_x()} AS q FROM d1 x WHERE x.a = y.a GROUP BY x.b) f ON true",
        lambda: f"SELECT %gather(s.n ORDER BY s.n), %total(s.n) FROM (SELECT length({aggregate()}::text) AS n FROM {source}{where} "
                f"GROUP BY {group}) s",
        lambda: f"SELECT s.b, s.q, count(*) OVER (PARTITION BY s.q) FROM (SELECT x.b, {of_x()} AS q FROM d1 x GROUP BY x.b) s",
        lambda: f"SELECT x.b, {of_x()}::text FROM d1 x GROUP BY x.b UNION ALL SELECT x.b, {of_x()}::text FROM d3 x GROUP BY x.b",
        lambda: f"SELECT y.id FROM d2 y WHERE EXISTS (SELECT {of_x()} FROM d1 x WHERE x.b = y.b GROUP BY x.a "
                f"HAVING {of_x()}::text <> '{n(0, 3)}')",
        lambda: f"SELECT x.a, x.b, grouping(x.a, x.b), {of_x()} FROM d2 x GROUP BY GROUPING SETS ((x.a, x.b), (x.b), (x.a), ())",
    )()  # fmt: skip
    return twins("own_aggregates", [Step(query)])


def maps(queries):
    """Map functions over random queries, once, joined, and for each row around."""
    n, one_of = queries.integer, queries.one_of
    queries.settings["transship.transport"] = one_of("auto", "flight")

    def mapped(alias, condition="true"):
        name = one_of(*MAPS)
        d = one_of("d1", "d2", "d3")
        query = f"SELECT ({queries.number(['x'], n(0, 2))})::bigint FROM {d} x WHERE {condition} AND {queries.condition(['x'], 1)} ORDER BY x.id"
        return name, query, f"AS {alias} ({MAPS[name][0]})"

    def call(alias):
        name, query, columns = mapped(alias)
        # Chains, most of which are fused: those whose query is nothing but a column.
        for depth in range(one_of(0, 0, 1, 1, 2, 3)):
            inner = f"%map('%{name}', $c{depth}${query}$c{depth}$) {columns}"
            query = f"SELECT x FROM {inner}{one_of('', '', '', ' WHERE x IS NOT NULL', f' LIMIT {n(1, 9)}')}"
            name = one_of(*MAPS)
            columns = f"AS {alias} ({MAPS[name][0]})"
        return f"%map('%{name}', $q${query}$q$) {columns}"

    def call_for(alias, outer):
        name, query, columns = mapped(alias, f"x.b = $q$ || coalesce({outer}.b, -1) || $q$")
        return f"%map('%{name}', $q${query}$q$) {columns}"

    query = one_of(
        lambda: f"SELECT * FROM {call('m')}",
        lambda: f"SELECT %inc(m.x), m.* FROM {call('m')} WHERE {queries.one_of('%even(m.x)', 'm.x > 3', 'm.x IS NOT NULL')}",
        lambda: f"SELECT count(*), sum(m.x) FROM {call('m')}",
        lambda: f"SELECT * FROM {call('m')} LIMIT {n(0, 4)}",
        lambda: f"SELECT m.x, o.x FROM {call('m')} {one_of('JOIN', 'LEFT JOIN', 'FULL JOIN')} {call('o')} ON m.x = o.x",
        lambda: f"SELECT y.id, m.* FROM (SELECT * FROM d2 ORDER BY id LIMIT {n(0, 12)}) y, {call_for('m', 'y')}",
        lambda: f"SELECT y.id, m.* FROM (SELECT * FROM d2 ORDER BY id LIMIT {n(0, 12)}) y LEFT JOIN {call_for('m', 'y')} ON m.x > {n(0, 9)}",
        lambda: f"SELECT y.id FROM d2 y WHERE y.id < {n(1, 9)} AND {one_of('', 'NOT ')}EXISTS "
                f"(SELECT FROM {call_for('m', 'y')} WHERE m.x > {n(0, 9)})",
        lambda: f"SELECT y.id, (SELECT max(m.x) FROM {call('m')}) FROM d2 y WHERE y.a IN (SELECT m.x FROM {call('m')})",
        lambda: f"SELECT m.*, f.id, f.b FROM {call('m')}, %many(m.x) f",
    )()  # fmt: skip
    parallel = Step("SET max_parallel_workers_per_gather = 0")
    question = twins("maps", [parallel, Step(query)])
    for step in question.sides[1].steps:
        step.sql = step.sql.replace("c_map(", "transship.map(")
    return question
