"""Questions about shared tables, which must answer as ordinary ones do.

Plans differ, since ordinary tables have other paths. So no query may depend on which rows an expression is evaluated for, nor on the
order of rows but where that of the table is known.
"""

from script import Question, Side, Step
from sessions import a_change
from table_twins import FORMS, with_table_form, with_twins
from twins import FRESH_ROWS, FUNCTIONS

# Of each type values as literals, of which some are special. Those of the first types may be in a key.
KEY_TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["0", "1", "-32768", "32767", "7"],
    "integer": ["0", "1", "-2147483648", "2147483647", "7", "65536"],
    "bigint": ["0", "1", "-9223372036854775808", "9223372036854775807", "7", "4294967296"],
    "text": ["''", "'a'", "'A'", "'a '", "'ä'", "repeat('xy', 900)"],
    "varchar(3)": ["''", "'a'", "'abc'", "'a '", "'äöü'"],
    "varchar": ["''", "'a'", "'abcd'", "' a'"],
    "bytea": [r"'\x'", r"'\x00'", r"'\x0000'", r"'\xff'"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'12345678-9abc-def0-1234-56789abcdef0'"],
    "date": ["'epoch'", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'2024-02-29'"],
    "time": ["'00:00'", "'24:00'", "'12:34:56.789012'"],
    "time(0)": ["'00:00'", "'24:00'", "'12:34:56'"],
    "timestamp": ["'epoch'", "'infinity'", "'-infinity'", "'2024-02-29 12:00:00.000001'", "'1969-12-31 23:59:59.999999'"],
    "timestamptz": ["'epoch'", "'infinity'", "'-infinity'", "'2024-03-31 02:30:00+02'", "'1900-01-01 00:00:00+00'"],
}  # fmt: skip
OTHER_TYPES = {
    "real": ["0", "'-0'", "'NaN'", "'Infinity'", "0.1", "1e-45"],
    "double precision": ["0", "'-0'", "'NaN'", "'-Infinity'", "0.1", "5e-324"],
    "numeric": ["0", "1.0", "1.00", "'NaN'", "'Infinity'", "-123456789012345678901234567890.123456789"],
    "numeric(10,2)": ["0", "1.5", "-99999999.99", "'NaN'"],
    "character(4)": ["''", "'a'", "'abcd'"],
    "json": ["'null'", "'{\"a\": [1,  2]}'", "'\"ä\"'"],
    "jsonb": ["'null'", "'{\"b\": 1, \"a\": 1.50}'", "'[]'"],
    "interval": ["'0'", "'1 month -1 day 00:00:00.000001'", "'-178000000 years'"],
    "timetz": ["'12:00+02'", "'24:00-15:59'"],
    "inet": ["'10.0.0.1'", "'10.0.0.1/8'", "'::1'"],
    "name": ["'n'", "''"],
    "integer[]": ["'{}'", "'{1,NULL,3}'"],
    "text[]": ["'{}'", "'{\"\",NULL,a}'"],
}  # fmt: skip
TYPES = {**KEY_TYPES, **OTHER_TYPES}
INTEGERS = ("smallint", "integer", "bigint")


def table_twins(kind, steps, declared=None, is_batched=False):
    """The same statements of ordinary tables and of shared ones."""

    def side(name, prefix):
        steps_of_side = [
            Step(with_table_form(step.sql, prefix, declared or {}), step.session, step.is_ordered, step.overlaps, step.portions)
            for step in steps
        ]
        return Side(name, steps_of_side)

    return Question(kind, (side("ordinary tables", "p_"), side("shared tables", "c_")), is_batched=is_batched)


def forms(queries, *, without=()):
    """Which twins a query reads in place of d1, d2 and d3."""
    return {table: queries.one_of(*[form for form in FORMS if form not in without]) for table in ("d1", "d2", "d3")}


def tables(queries):
    """A query of another kind, a change, or a query by key, over shared tables."""
    queries.settings["enable_partitionwise_join"] = queries.one_of("on", "off")
    if queries.chance(0.1):
        change = with_twins(a_change(queries), forms(queries))
        return table_twins("tables", [*map(Step, FRESH_ROWS), Step(change), Step("SELECT * FROM d4")], is_batched=True)
    kind = queries.one_of(
        "plain", "plain", "plain", "initplans", "grouping_sets", "lateral_subselects", "composites", "subplans_in_aggregates", "recursion",
        "set_operations",
    )  # fmt: skip
    query = keyed(queries) if queries.chance(0.6) else getattr(queries, kind)()
    query = with_twins(query.replace("%fail(", "%inc("), forms(queries))
    if queries.chance(0.5) or "LEFT JOIN %" in query or "RIGHT JOIN" in query:
        # Faster, with PL/pgSQL on both sides: filters of outer joins, for one, are evaluated row by row.
        for name, *_ in FUNCTIONS:
            query = query.replace(f"%{name}(", f"p_{name}(")
    steps = [Step(query)]
    if queries.chance(0.25):
        mode = queries.one_of("force_generic_plan", "auto")
        steps = [Step(f"SET plan_cache_mode = {mode}"), Step(f"PREPARE q AS {query}"), Step("EXECUTE q"), Step("EXECUTE q")]
    return table_twins("tables", steps, is_batched=True)


def keyed(queries):
    """A query that compares keys with what is known, or with other tables' columns."""
    n, one_of = queries.integer, queries.one_of
    d = lambda: one_of("d1", "d2", "d3")  # noqa: E731
    number = lambda *others: one_of(  # noqa: E731
        f"{n(-1, 20)}", f"{n(0, 20)}::smallint", f"{n(0, 20)}::bigint", "NULL", f"%inc({n(0, 9)})",
        f"(SELECT max(s.b) FROM d2 s WHERE s.id < {n(0, 9)})", *[f"{other}.{one_of('a', 'b', 'id')}" for other in others * 4],
        *[f"%inc({other}.b)" for other in others], *[f"({other}.a + 1)" for other in others],
    )  # fmt: skip
    text = lambda *others: one_of("'t5'", "'t7'::varchar", "NULL", "%up('t3')", *[f"{other}.t" for other in others * 3])  # noqa: E731

    form = one_of("id", "a", "segments", "ba", "ba", "t", "parts", "heirs", "barrier", "none")
    columns = {"id": ["id"], "ba": ["b", "a"], "t": ["t"]}.get(form, ["a"])
    keyed_table = f"%{d()}_{form} x"

    def on(*others):
        """A condition on x."""
        one, other = number(*others), number(*others)
        known = {"b": one, "a": other, "id": one, "t": text(*others)}
        by_key = " AND ".join(f"x.{column} = {known[column]}" for column in columns)
        return one_of(
            by_key, by_key, by_key, f"{by_key} AND {queries.condition(['x', *others], 1)}", f"{known[columns[0]]} = x.{columns[0]}",
            f"x.a IN ({one}, {other})", f"x.id = ANY (ARRAY[{one}, 3])", f"x.a = {one} OR x.id = {other}",
            f"x.a IS NOT DISTINCT FROM {one}", f"(x.b, x.a) = ({one}, {other})",
        )  # fmt: skip

    join = lambda: one_of("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN")  # noqa: E731
    column = lambda *tables: queries.number(list(tables), n(0, 2))  # noqa: E731
    few = one_of("", "", f" WHERE y.id < {n(1, 40)}", f" WHERE {queries.condition(['y'], 1)}")
    return one_of(
        lambda: f"SELECT x.id, x.a, x.b, x.t, {column('x')} FROM {keyed_table} WHERE {on()}",
        lambda: f"SELECT x, {queries.aggregate(['x'])} FROM {keyed_table} WHERE {on()} GROUP BY x.id, x.a, x.b, x.t, x.*",
        lambda: f"SELECT y.id, x.id, x.t, {column('x', 'y')} FROM {d()} y {join()} {keyed_table} ON {on('y')}{few}",
        lambda: f"SELECT y.id, x.id, z.id FROM {d()} y {join()} {d()} z ON z.id = y.a {join()} {keyed_table} ON {on('y', 'z')}{few}",
        lambda: f"SELECT y.id, x.id FROM {d()} y FULL JOIN {keyed_table} ON x.{one_of('a', 'b', 'id')} = y.{one_of('a', 'b', 'id')}",
        lambda: f"SELECT y.id FROM {d()} y WHERE {one_of('', 'NOT ')}EXISTS (SELECT FROM {keyed_table} WHERE {on('y')})",
        lambda: f"SELECT y.id, (SELECT {one_of('count(*)', 'max(x.id)', 'sum(%inc(x.b))')} FROM {keyed_table} WHERE {on('y')}) FROM {d()} y{few}",
        lambda: f"SELECT y.id, f.* FROM {d()} y LEFT JOIN LATERAL (SELECT x.id, {column('x', 'y')} AS q FROM {keyed_table} "
                f"WHERE {on('y')} ORDER BY x.id LIMIT {n(1, 3)}) f ON true{few}",
        lambda: f"SELECT y.id FROM {d()} y WHERE y.a {one_of('', 'NOT ')}IN (SELECT x.a FROM {keyed_table} WHERE {on()})",
        lambda: f"SELECT count(*), sum(x.a) FROM {d()} y, {keyed_table}, {d()} z WHERE x.a = y.a AND x.b = z.b AND y.id = {n(1, 60)} AND z.id < 30",
    )()  # fmt: skip


def a_table(queries, names="abcdefgh"):
    """A random table's columns with their types, its key, and a function that makes rows of it."""
    columns = [(name, queries.one_of(*KEY_TYPES, *TYPES)) for name in names[: queries.integer(1, 6)]]
    if columns[0][1] not in KEY_TYPES:
        columns[0] = (columns[0][0], queries.one_of(*KEY_TYPES))
    may_be_key = [name for name, kind in columns if kind in KEY_TYPES]
    key = queries.random.sample(may_be_key, queries.integer(1, min(3, len(may_be_key))))

    def rows(count):
        literal = lambda kind: value(queries, kind, 0.2)  # noqa: E731
        return ", ".join(f"({i}, {', '.join(literal(kind) for _, kind in columns)})" for i in range(count))

    return columns, key, rows


def value(queries, kind, null=0.1):
    literal = "NULL" if queries.chance(null) else queries.one_of(*TYPES[kind])
    return f"({literal})::{kind}"


def declared_with(columns):
    return [("i", "bigint"), *columns]


def values(queries):
    """A table of random types and rows, with some more appended and some columns altered, read whole and by key."""
    columns, key, rows = a_table(queries)
    columns_of = lambda: ", ".join(f"{name} {kind}" for name, kind in declared_with(columns))  # noqa: E731
    name_key = ", ".join(key)
    steps = [
        Step("BEGIN"), Step(f"CREATE TABLE d5 ({columns_of()})"),
        Step(f"INSERT INTO d5 VALUES {rows(queries.integer(1, 40))}"), Step(f"SELECT %share('%t', 'SELECT * FROM d5', '{name_key}')"),
    ]  # fmt: skip
    for _ in range(queries.integer(0, 2)):
        steps += [Step("TRUNCATE d5"), Step(f"INSERT INTO d5 VALUES {rows(queries.integer(1, 20))}")]
        steps.append(Step("SELECT %append('%t', 'SELECT * FROM d5')"))
    if queries.chance(0.3):
        steps += altered(queries, columns, key)
    declared = {"t": (declared_with(columns), key)}
    steps += [Step(reading(queries, columns, key)) for _ in range(queries.integer(2, 5))]
    steps.append(Step(f"SELECT {', '.join(f'x.{name}::text' for name, _ in declared_with(columns))} FROM %t x"))
    return table_twins("values", [*steps, Step("ROLLBACK")], declared)


def altered(queries, columns, key):
    """Changes of columns, behind which the table is shared again."""
    steps = []
    both = lambda change: steps.extend(Step(f"ALTER TABLE {table} {change}") for table in ("d5", "%t"))  # noqa: E731
    for _ in range(queries.integer(1, 3)):
        others = [i for i, (name, _) in enumerate(columns) if name not in key]
        change = queries.one_of("drop", "rename", "type", "add", "again") if others else "add"
        i = queries.one_of(*others) if others else 0
        name, kind = columns[i]
        if change in ("drop", "again"):
            # A column of a table that has rows is not dropped.
            steps += [Step(f"ALTER TABLE d5 DROP COLUMN {name}"), Step("SELECT %unshare('%t')")]
            columns.pop(i)
            if change == "again":
                kind = queries.one_of(*TYPES)
                steps.append(Step(f"ALTER TABLE d5 ADD COLUMN {name} {kind}"))
                columns.append((name, kind))
            steps.append(Step(f"SELECT %share('%t', 'SELECT * FROM d5', '{', '.join(key)}')"))
        elif change == "add":
            name, kind = f"n{len(steps)}", queries.one_of(*TYPES)
            both(f"ADD COLUMN {name} {kind}")
            columns.append((name, kind))
        elif change == "rename":
            columns[i] = (f"r{len(steps)}", kind)
            both(f"RENAME COLUMN {name} TO {columns[i][0]}")
        elif change == "type":
            if kind in ("smallint", "integer"):
                columns[i] = (name, "bigint")
                both(f"ALTER COLUMN {name} TYPE bigint")
            elif kind in ("varchar", "varchar(3)", "character(4)", "name"):
                columns[i] = (name, "text")
                both(f"ALTER COLUMN {name} TYPE text")
    return [*steps, Step(f"SELECT %share('%t', 'SELECT * FROM d5', '{', '.join(key)}')")]


def reading(queries, columns, key):
    """A query on the table %t and its source d5."""
    kinds = dict(columns)
    n, one_of = queries.integer, queries.one_of

    def known(name):
        kind = kinds[name]
        if kind in INTEGERS and queries.chance(0.3):
            kind = one_of(*INTEGERS)
        return value(queries, kind)

    texts = ", ".join(f"x.{name}::text" for name, _ in declared_with(columns))
    by_key = lambda other: " AND ".join(f"x.{name} = {other(name)}" for name in key)  # noqa: E731
    joined = by_key(lambda name: f"y.{name}")
    condition = one_of(
        by_key(known), by_key(known), joined.replace("y.", "x."), f"x.{key[0]} IN ({known(key[0])}, {known(key[0])})",
        f"x.{key[0]} IS NULL", f"x.{key[0]} = ANY (ARRAY[{value(queries, kinds[key[0]])}])", f"NOT ({by_key(known)})",
        f"{by_key(known)} AND x.i > {n(0, 9)}", f"x.{key[-1]} <> {known(key[-1])}", f"x.{key[-1]} >= {known(key[-1])}",
    )  # fmt: skip
    look_up = f"[[%t x|{' ; '.join(f'y.{name}' for name in key)}]]"
    fixed = f"[[%t x|{' ; '.join(known(name) for name in key)}]]"
    return one_of(
        f"SELECT {texts} FROM %t x WHERE {condition}",
        f"SELECT {texts} FROM %t x WHERE {condition}",
        f"SELECT {texts}, x::text FROM %t x WHERE {by_key(known)}",
        f"SELECT y.i, {texts} FROM d5 y {one_of('JOIN', 'LEFT JOIN', 'RIGHT JOIN', 'FULL JOIN')} %t x ON {joined}",
        f"SELECT y.i FROM d5 y WHERE {one_of('', 'NOT ')}EXISTS (SELECT FROM %t x WHERE {joined})",
        f"SELECT y.i, (SELECT count(*) FROM %t x WHERE {joined}) FROM %t y",
        f"SELECT y.i, {texts} FROM d5 y, {look_up}",
        f"SELECT y.i, x.i, x::text FROM %t y LEFT JOIN {look_up} ON {one_of('true', 'x.i > 3')}",
        f"SELECT {texts} FROM {fixed}",
        f"SELECT x.{key[0]}::text, count(*), max(x.i) FROM %t x GROUP BY x.{key[0]}",
        f"SELECT DISTINCT (x.{', x.'.join(key)}) IS NULL, x.{key[0]}::text FROM %t x",
    )
