"""Questions of several statements: prepared statements, cursors, changes of rows, two sessions that meet, roles."""

import dataclasses

from script import Question, Side, Step
from twins import FRESH_ROWS, ROLES, with_form


def twins(kind, steps):
    """Both forms of the same statements."""

    def side(name, prefix):
        return Side(name, [dataclasses.replace(step, sql=with_form(step.sql, prefix)) for step in steps])

    return Question(kind, (side("PL/pgSQL", "p_"), side("container", "c_")))


def prepared(queries):
    """A prepared statement with parameters, under plans for all values and for each."""
    queries.parameters = ["$1", "$2"]
    kind = queries.one_of(
        "plain", "initplans", "grouping_sets", "lateral_subselects", "composites", "subplans_in_aggregates", "window_conditions",
        "set_operations",
    )  # fmt: skip
    query = getattr(queries, kind)()
    mode = queries.one_of("force_generic_plan", "force_generic_plan", "force_generic_plan", "auto", "force_custom_plan")
    steps = [Step(f"SET plan_cache_mode = {mode}"), Step(f"PREPARE q(bigint, bigint) AS {query}")]
    for _ in range(queries.integer(2, 4)):
        values = [queries.one_of("NULL", "0", "1", "3", "5", "12", "-4") for _ in range(2)]
        steps.append(Step(f"EXECUTE q({', '.join(values)})"))
    return twins("prepared", steps)


def _moves(queries, scrolls):
    """FETCH and MOVE, backwards too where the cursor scrolls."""
    forward = lambda: queries.one_of("NEXT", f"{queries.integer(1, 40)}", f"FORWARD {queries.integer(1, 9)}", "FORWARD ALL")  # noqa: E731
    n = queries.integer
    moves = []
    for _ in range(n(3, 8)):
        verb = queries.one_of("FETCH", "FETCH", "FETCH", "MOVE")
        move = forward()
        if scrolls and queries.chance(0.7):
            move = queries.one_of(
                "PRIOR", "FIRST", "LAST", f"BACKWARD {n(1, 40)}", f"BACKWARD {n(1, 5)}", "BACKWARD ALL", f"ABSOLUTE {n(-20, 40)}",
                f"RELATIVE {n(-20, 20)}", "BACKWARD 0", "ABSOLUTE 0",
            )  # fmt: skip
        moves.append(Step(f"{verb} {move} FROM c", is_ordered=True))
    return moves


def _cursor_query(queries):
    """A query whose rows come in one order without a Sort node above it, most of the time."""
    d = queries.one_of("d1", "d2", "d3")
    ids = lambda tables: queries.ids(tables)  # noqa: E731
    columns = lambda tables: ", ".join(queries.columns(tables, 2))  # noqa: E731
    where = lambda tables: queries.where(tables, 0.4)  # noqa: E731
    part = lambda: f"SELECT x.id, {queries.number(['x'], 2)} FROM {queries.one_of('d1', 'd2', 'd3')} x{where(['x'])}"  # noqa: E731
    return queries.one_of(
        lambda: f"SELECT x.id, {columns(['x'])} FROM {d} x{where(['x'])}",
        lambda: f"SELECT x.id, {columns(['x'])} FROM d1 x{where(['x'])} ORDER BY x.id",
        lambda: f"SELECT x.id, {columns(['x'])} FROM {d} x{where(['x'])} LIMIT {queries.integer(0, 100)}",
        lambda: f"SELECT x.id, {columns(['x'])} FROM {d} x LIMIT {queries.integer(0, 100)} OFFSET {queries.integer(0, 20)}",
        lambda: f"{part()} UNION ALL {part()}",
        lambda: f"{part()} UNION ALL SELECT x.id, x.a FROM d2 x",
        lambda: f"SELECT id, %inc(a) FROM ({part()} OFFSET 0) s(id, a) WHERE {queries.one_of('true', 'a > 3', '%even(a)')}",
        lambda: f"SELECT x.id, f.id, f.a FROM d2 x, %many({queries.number(['x'], 1)}) f{where(['x', 'f'])}",
        lambda: f"SELECT x.id, %upto({queries.number(['x'], 1)}) FROM d2 x{where(['x'])}",
        lambda: f"SELECT x.id, y.id, {columns(['x', 'y'])} FROM d2 x JOIN d2 y ON y.id = %inc(x.id){where(['x', 'y'])}",
        lambda: f"SELECT x.b, sum({queries.number(['x'], 1)}), %inc(x.b) FROM d1 x GROUP BY x.b ORDER BY x.b",
        lambda: f"SELECT {ids(['x'])}, row_number() OVER (ORDER BY x.id), {columns(['x'])} FROM d1 x{where(['x'])}",
        lambda: f"WITH w AS MATERIALIZED (SELECT id, {queries.number(['x'], 1)} AS a FROM {d} x) SELECT id, a, %inc(a) FROM w",
        lambda: f"SELECT v.k, %inc(v.k) FROM (VALUES (1::bigint), (2), (NULL), (4), (5)) v(k)",
        lambda: f"SELECT g, %inc(g) FROM generate_series(1, 50) g{queries.one_of('', ' WHERE %even(g)')}",
    )()


def cursors(queries):
    """Scrolling back and forth, and to places."""
    query = _cursor_query(queries)
    moves = _moves(queries, True)
    way = queries.one_of("plain", "plain", "hold", "hold after", "plpgsql", "forward")
    if way == "plpgsql":
        steps = [Step("BEGIN"), Step(f"SELECT d_open('c', $q${query}$q$)"), *moves, Step("COMMIT")]
    elif way == "hold":
        steps = [Step(f"DECLARE c SCROLL CURSOR WITH HOLD FOR {query}"), *moves, Step("CLOSE c")]
    elif way == "hold after":
        half = len(moves) // 2
        steps = [Step("BEGIN"), Step(f"DECLARE c SCROLL CURSOR WITH HOLD FOR {query}"), *moves[:half], Step("COMMIT"), *moves[half:]]
    elif way == "forward":
        steps = [Step("BEGIN"), Step(f"DECLARE c NO SCROLL CURSOR FOR {query}"), *_moves(queries, False), Step("COMMIT")]
    else:
        steps = [Step("BEGIN"), Step(f"DECLARE c SCROLL CURSOR FOR {query}"), *moves, Step("COMMIT")]
    return twins("cursors", [Step("SET max_parallel_workers_per_gather = 0"), *steps])


def locking_cursors(queries):
    """Cursors FOR UPDATE, and changes at their position."""
    source = queries.one_of("d4 x", "d4 x, %many(x.a) f", "d4 x JOIN d2 y ON y.id = %inc(x.id)")
    tables = {"d4 x": ["x"], "d4 x, %many(x.a) f": ["x", "f"]}.get(source, ["x", "y"])
    lock = queries.one_of("FOR UPDATE OF x", "FOR UPDATE OF x", "FOR SHARE OF x", "FOR UPDATE OF x SKIP LOCKED")
    limit = queries.one_of("", f" LIMIT {queries.integer(1, 30)}")
    query = f"SELECT x.id, {', '.join(queries.columns(tables, 2))} FROM {source}{queries.where(tables, 0.4)}{limit} {lock}"
    steps = [*map(Step, FRESH_ROWS), Step("SET max_parallel_workers_per_gather = 0"), Step("BEGIN"), Step(f"DECLARE c CURSOR FOR {query}")]
    for _ in range(queries.integer(1, 4)):
        steps.append(Step(f"FETCH {queries.integer(1, 6)} FROM c", is_ordered=True))
        change = queries.one_of(f"UPDATE d4 SET a = {queries.number(['d4'], 1)}", "UPDATE d4 SET b = %inc(b)", "DELETE FROM d4")
        steps.append(Step(f"{change} WHERE CURRENT OF c"))
    return twins("locking cursors", [*steps, Step("COMMIT"), Step("SELECT * FROM d4")])


def a_change(queries):
    """A statement that changes or locks rows of d4, of which each meets at most one other row unless that does not matter."""
    number = lambda *tables: queries.number(list(tables), queries.integer(1, 2))  # noqa: E731
    condition = lambda *tables: queries.condition(list(tables), 1)  # noqa: E731
    returning = lambda *tables: queries.one_of("", "", f" RETURNING {tables[0]}.id, {number(*tables)}")  # noqa: E731
    one_each = "(SELECT DISTINCT ON (x.id) x.id, f.a, f.b, x.t FROM d2 x, %many(x.a) f ORDER BY x.id, f.id)"
    return queries.one_of(
        lambda: f"UPDATE d4 SET a = {number('d4')} WHERE {condition('d4')}{returning('d4')}",
        lambda: f"UPDATE d4 SET a = {number('d4', 'f')} FROM d2 x, %many(x.b) f WHERE d4.id = x.id AND f.id = 1"
                f"{queries.one_of('', ' AND ' + condition('d4', 'f'))}{returning('d4', 'f')}",
        lambda: f"UPDATE d4 SET b = f.id FROM d2 x LEFT JOIN LATERAL %many(x.a - 2) f ON f.id = 1 "
                f"WHERE d4.id = x.id AND %inc(d4.b) > 0{returning('d4')}",
        lambda: f"UPDATE d4 SET b = {number('d4', 'y')} FROM {one_each} y WHERE y.id = d4.id AND {condition('d4', 'y')}",
        lambda: f"DELETE FROM d4 WHERE {condition('d4')}{returning('d4')}",
        lambda: f"DELETE FROM d4 USING d2 x, %many(x.b) f WHERE d4.id = x.id AND f.a = {queries.integer(1, 4)}",
        lambda: f"SELECT x.id, x.a, f.id, f.a, {number('x', 'f')} FROM d4 x, %many(x.a) f{queries.where(['x', 'f'], 0.3)} "
                "FOR UPDATE OF x",
        lambda: f"SELECT x.id, f.id, f.a, {number('x')} FROM d4 x LEFT JOIN LATERAL %many(x.b) f ON true FOR UPDATE OF x",
        lambda: f"SELECT x.id, y.id, {number('x', 'y')} FROM d4 x JOIN d2 y ON y.id = %inc(x.id) WHERE {condition('x', 'y')} "
                "FOR UPDATE OF x",
        lambda: "SELECT x.id, x.u FROM (SELECT id, %upto(a) AS u FROM d2) x JOIN d4 y ON y.id = x.id WHERE %inc(y.b) > 0 FOR UPDATE OF y",
        lambda: f"MERGE INTO d4 USING {one_each} y ON y.id = d4.id "
                f"WHEN MATCHED AND {condition('d4', 'y')} THEN UPDATE SET a = {number('d4', 'y')} "
                f"WHEN MATCHED THEN {queries.one_of('DELETE', 'DO NOTHING', 'UPDATE SET b = y.a')} "
                f"WHEN NOT MATCHED THEN INSERT VALUES (y.id, {number('y')}, %inc(y.b), 'new')",
        lambda: f"MERGE INTO d4 USING d2 y ON y.id = %inc(d4.id) WHEN MATCHED THEN UPDATE SET a = {number('d4', 'y')}",
        lambda: f"INSERT INTO d4 SELECT x.id, {number('x')}, %inc(x.b), %up(x.t) FROM d2 x "
                "ON CONFLICT (id) DO UPDATE SET a = %inc(excluded.a) WHERE %even(d4.b)",
    )()  # fmt: skip


def changes(queries):
    """INSERT, UPDATE, DELETE and MERGE, and what they leave."""
    return twins("changes", [*map(Step, FRESH_ROWS), Step(a_change(queries)), Step("SELECT * FROM d4")])


def meetings(queries):
    """A statement waits for rows that another session changes, and looks at what they became (EvalPlanQual)."""
    lowest = queries.integer(1, 20)
    span = f"id BETWEEN {lowest} AND {lowest + queries.integer(0, 12)}"
    first = queries.one_of(
        f"UPDATE d4 SET a = a + 1 WHERE {span}",
        f"UPDATE d4 SET a = 2, b = 3 WHERE {span}",
        f"UPDATE d4 SET a = NULL, t = 'changed' WHERE {span}",
        f"UPDATE d4 SET b = b + 1000 WHERE {span}",
        f"DELETE FROM d4 WHERE {span}",
    )
    end = queries.one_of("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")
    second = a_change(queries)
    while second.startswith("INSERT"):
        second = a_change(queries)
    steps = [
        *map(Step, FRESH_ROWS), Step("BEGIN"), Step(first), Step(second, session=2, overlaps=True), Step(end),
        # Waits for the second session.
        Step("SELECT 1", session=2), Step("SELECT * FROM d4"),
    ]  # fmt: skip
    return twins("meetings", steps)


def effects(queries):
    """What a query leaves behind that ends early: values drawn from a sequence, locked rows."""
    call = queries.number(["x"], queries.integer(1, 2))
    limit = f"LIMIT {queries.integer(0, 5)}"
    drawn = queries.one_of(
        f"SELECT nextval('d_drawn'), {call} FROM d1 x {limit}",
        f"SELECT x.n, %inc(x.a) FROM (SELECT a, nextval('d_drawn') AS n FROM d1) x {limit}",
        f"SELECT x.id, {call} FROM d1 x WHERE nextval('d_drawn') > {queries.integer(0, 9)} AND %even(x.a) {limit}",
        f"SELECT EXISTS (SELECT FROM d2 x WHERE %inc(x.a) > 3 AND nextval('d_drawn') > {queries.integer(0, 9)})",
        f"SELECT x.id, (SELECT nextval('d_drawn') + %inc(x.a) FROM d2 y WHERE y.b = x.b LIMIT 1) FROM d2 x WHERE x.id < 3",
        f"SELECT %inc(nextval('d_drawn')) FROM d1 x {limit}",
    )
    locking = queries.one_of(
        f"SELECT x.id, {call} FROM d4 x {limit} FOR UPDATE",
        f"SELECT x.id, {call} FROM (SELECT * FROM d4 FOR UPDATE) x {limit}",
        f"SELECT x.id, {call} FROM d4 x WHERE %even(x.a) {limit} FOR UPDATE",
        f"SELECT x.id, f.id FROM d4 x, %many(x.a) f {limit} FOR UPDATE OF x",
        f"SELECT x.id, {call} FROM d4 x WHERE x.id > {queries.integer(0, 9)} ORDER BY x.id {limit} FOR UPDATE",
    )
    prepare = [*map(Step, FRESH_ROWS), Step("ALTER SEQUENCE d_drawn RESTART"), Step("SET max_parallel_workers_per_gather = 0"), Step("BEGIN")]
    query = queries.one_of(drawn, locking)
    if queries.chance(0.4):
        query = query.replace(limit, "")
        steps = [Step(f"DECLARE c CURSOR FOR {query}"), Step(f"FETCH {queries.integer(0, 5)} FROM c", is_ordered=True)]
    else:
        steps = [Step(query)]
    look = [Step("SELECT last_value, is_called FROM d_drawn"), Step("SELECT id FROM d4 FOR UPDATE SKIP LOCKED", session=2)]
    return twins("effects", [*prepare, *steps, *look, Step("COMMIT")])


def _turns(queries):
    """A query whose parts change and read what no row holds: a sequence, a setting."""
    n = queries.integer
    number = lambda: queries.number(["x"], n(0, 1))  # noqa: E731
    reads = lambda: queries.one_of("currval('d_drawn')", "currval('d_drawn')", "current_setting('d.put')::bigint", "lastval()")  # noqa: E731
    acts = lambda: queries.one_of("nextval('d_drawn')", "nextval('d_drawn')", "d_put(x.id)", f"d_put({number()})")  # noqa: E731

    def item():
        return queries.one_of(
            acts, acts, reads, number, number,
            lambda: f"%inc({reads()})",
            lambda: f"%add({number()}, {reads()})",
            lambda: f"%inc({acts()})",
            lambda: f"%pick({acts()}, {reads()})",
            lambda: f"CASE WHEN {reads()} % 2 = 0 THEN %inc(x.a) ELSE {number()} END",
            lambda: f"coalesce(%inc(nullif(x.b, 2)), %inc({reads()}))",
            lambda: f"%inc((SELECT {reads()}))",
            lambda: f"(SELECT %inc(y.a + {reads()}) FROM d2 y WHERE y.id = x.id)",
        )()  # fmt: skip

    items = lambda: ", ".join(item() for _ in range(n(2, 4)))  # noqa: E731
    condition = lambda: queries.one_of("%even(x.a)", "x.id < 30", f"{acts()} >= 0", f"%inc({reads()}) > 0", f"{reads()} >= 0")  # noqa: E731
    where = lambda: queries.one_of("", "", f" WHERE {condition()}", f" WHERE {condition()} AND {condition()}")  # noqa: E731
    limit = queries.one_of("", "", "", f" LIMIT {n(0, 9)}")
    return queries.one_of(
        lambda: f"SELECT {items()} FROM d2 x{where()}{limit}",
        lambda: f"SELECT {items()} FROM d2 x{where()}{limit}",
        lambda: f"SELECT {acts()}, x.n, {item()} FROM (SELECT x.id, x.a, x.b, x.t, {item()} AS n FROM d2 x{where()} OFFSET 0) x{limit}",
        lambda: f"SELECT {items()} FROM (SELECT x.id, x.a, x.b, x.t, {item()} AS n FROM d2 x ORDER BY x.id, n OFFSET 0) x{where()}{limit}",
        lambda: f"SELECT {item()}, %upto({queries.one_of('x.a', reads())}), {item()} FROM d2 x{where()}",
        lambda: f"SELECT {item()}, f.id, {item()} FROM d2 x, %many({queries.one_of('x.a', acts(), reads())} % 4) f{where()}{limit}",
        lambda: f"SELECT sum({item()}), max({item()}), d_sum({item()}) FROM d2 x{where()}",
        lambda: f"SELECT x.b, sum({item()}), {queries.one_of('d_put(x.b)', reads())} FROM d2 x GROUP BY x.b ORDER BY x.b",
        lambda: f"SELECT {items()}, y.id FROM d2 x JOIN d2 y ON y.id = %inc(x.id){where()}{limit}",
        lambda: f"WITH w AS MATERIALIZED (SELECT x.id, x.a, x.b, x.t, {item()} AS n FROM d2 x{where()}) SELECT n, {items()} FROM w x{limit}",
        lambda: f"INSERT INTO d4 SELECT x.id + 1000, {item()}, {item()}, 'new' FROM d2 x{where()}",
        lambda: f"INSERT INTO d4 SELECT x.id + 1000, {item()}, {item()}, 'new' FROM d2 x RETURNING id, a, {reads()}",
        lambda: f"UPDATE d4 x SET a = {item()}, b = {item()} WHERE {condition()}",
    )()  # fmt: skip


def turns(queries):
    """Parts of a query, some of which see what others change."""
    query = _turns(queries)
    prepare = [*map(Step, FRESH_ROWS), Step("ALTER SEQUENCE d_drawn RESTART"), Step("SET max_parallel_workers_per_gather = 0")]
    begin = [Step("SELECT nextval('d_drawn'), d_put(3)"), Step("BEGIN")]
    trigger = "CREATE TRIGGER d_trigger BEFORE INSERT OR UPDATE ON d4 FOR EACH ROW EXECUTE FUNCTION d_trigger()"
    if query.startswith(("INSERT", "UPDATE")) and queries.chance(0.5):
        begin.append(Step(trigger))
    return twins("turns", [*prepare, *begin, Step(query), *_look(), Step("SELECT * FROM d4"), Step("ROLLBACK")])


def _look():
    return [Step("SELECT last_value, is_called FROM d_drawn"), Step("SELECT current_setting('d.put', true)")]


def stops(queries):
    """Statements that whoever runs them stops early: SELECT INTO, functions in SQL, clients that ask for some rows at a time."""
    n = queries.integer
    call = queries.one_of(
        f"%fail(x.id + {n(0, 6)})", "%inc(nextval('d_drawn'))", "%inc(x.a) + nextval('d_drawn')", "%echo(x.id)", "%fail(%inc(x.id))",
        queries.number(["x"], 2),
    )  # fmt: skip
    query = queries.one_of(
        f"SELECT {call} FROM d2 x",
        f"SELECT {call} FROM d2 x WHERE x.id > {n(0, 9)}",
        f"SELECT x.n FROM (SELECT {call} AS n, x.id FROM d2 x ORDER BY x.id OFFSET 0) x",
        f"SELECT {call} FROM (SELECT * FROM d2 ORDER BY b, id OFFSET 0) x",
        f"SELECT f.id + nextval('d_drawn') * 0 FROM d2 x, %many(x.a) f",
        "SELECT %inc(x.n) FROM (SELECT nextval('d_drawn') AS n FROM d2 OFFSET 0) x",
        f"WITH w AS MATERIALIZED (SELECT {call} AS n FROM d2 x) SELECT n FROM w",
        f"SELECT {call} FROM d2 x UNION ALL SELECT x.id FROM d2 x",
    )  # fmt: skip
    prepare = [*map(Step, FRESH_ROWS), Step("ALTER SEQUENCE d_drawn RESTART"), Step("SET max_parallel_workers_per_gather = 0")]
    way = queries.one_of("into", "strict", "sql", "sets", "portal", "portal", "caught")
    into = query.replace(" FROM", " INTO v FROM", 1) if query.startswith("SELECT x.n") else f"SELECT s.n INTO v FROM ({query}) s(n)"
    if way == "into":
        body = f"DECLARE v bigint; BEGIN {into}; RETURN v; END"
        steps = [Step(f"CREATE OR REPLACE FUNCTION d_stop() RETURNS bigint LANGUAGE plpgsql AS $q${body}$q$"), Step("SELECT d_stop()")]
    elif way == "strict":
        body = f"DECLARE v bigint; BEGIN {into.replace('INTO v', 'INTO STRICT v')}; RETURN v; END"
        steps = [Step(f"CREATE OR REPLACE FUNCTION d_stop() RETURNS bigint LANGUAGE plpgsql AS $q${body}$q$"), Step("SELECT d_stop()")]
    elif way == "caught":
        body = f"DECLARE v bigint; BEGIN BEGIN {into.replace('SELECT', 'SELECT %fail(7) +', 1)}; EXCEPTION WHEN others THEN v := 0; END; {into}; RETURN v; END"
        steps = [Step(f"CREATE OR REPLACE FUNCTION d_stop() RETURNS bigint LANGUAGE plpgsql AS $q${body}$q$"),
                 Step(f"SELECT d_stop(), x.id, {call} FROM d2 x WHERE x.id < 4")]  # fmt: skip
    elif way == "sql":
        steps = [Step(f"CREATE OR REPLACE FUNCTION d_stop() RETURNS bigint LANGUAGE sql VOLATILE AS $q${query}$q$"), Step("SELECT d_stop()")]
    elif way == "sets":
        # As of a cursor, what follows the first row is read ahead.
        limit = n(0, 5) if "%fail" not in query else min(n(0, 5), 1)
        steps = [Step(f"CREATE FUNCTION d_stops() RETURNS SETOF bigint LANGUAGE sql VOLATILE AS $q${query}$q$"),
                 Step(f"SELECT d_stops() LIMIT {limit}")]  # fmt: skip
    else:
        portions = tuple(n(1, 5) for _ in range(n(1, 3))) + queries.one_of((), (), (0,))
        # Behind the first portion rows are read ahead, for which a function may fail.
        portions = portions[:1] if "%fail" in query else portions
        steps = [Step(query, is_ordered=True, portions=portions)]
    # Left in a transaction that is rolled back, as the function is; a sequence keeps its value.
    return twins("stops", [*prepare, Step("SELECT nextval('d_drawn')"), Step("BEGIN"), *steps, Step("ROLLBACK"), *_look()[:1]])


def roles(queries):
    """Switches of roles inside a transaction, functions that switch themselves, and several users' calls in one query."""
    function = lambda: queries.one_of("%token", "%token", "%token_of_one", "%token_set_two", "%as_two", "%sum_as_two")  # noqa: E731
    if queries.chance(0.15):
        function = lambda: queries.one_of("%token", "%token_of_none", "%token_of_one")  # noqa: E731

    def ask():
        calls = [function() for _ in range(queries.integer(1, 3))]
        return queries.one_of(
            lambda: f"SELECT {', '.join(f'{call}({queries.integer(1, 9)})' for call in calls)}",
            lambda: f"SELECT x.id, {', '.join(f'{call}(x.id)' for call in calls)} FROM d2 x WHERE x.id < {queries.integer(3, 20)}",
            lambda: f"SELECT sum({calls[0]}(x.id)) FROM d2 x WHERE {calls[-1]}(x.id) > 0 AND x.id < 20",
            lambda: f"SELECT x.id FROM d2 x WHERE {calls[0]}(x.id) = {calls[-1]}(x.id) AND x.id < 20",
            lambda: f"SELECT {calls[0]}({calls[-1]}(x.id)) FROM d2 x WHERE x.id < 5",
        )()

    steps = [Step("BEGIN"), Step(f"PREPARE q AS {ask()}")]
    for _ in range(queries.integer(2, 6)):
        role = queries.one_of(*[role for role in ROLES if ROLES[role] is not None], "postgres")
        if queries.chance(0.1):
            role = "d_none"
        steps.append(queries.one_of(
            lambda: Step(f"SET ROLE {role}"), lambda: Step(f"SET LOCAL ROLE {role}"), lambda: Step("RESET ROLE"),
            lambda: Step("SAVEPOINT s"), lambda: Step(f"SET SESSION AUTHORIZATION {role}"),
        )())  # fmt: skip
        steps.append(queries.one_of(lambda: Step("EXECUTE q"), lambda: Step(ask()), lambda: Step(ask()), lambda: Step(ask()))())
        if queries.chance(0.15):
            steps.append(Step(queries.one_of("ROLLBACK", "COMMIT")))
            steps.append(Step("BEGIN"))
    return twins("roles", [*steps, Step("COMMIT"), Step(ask())])
