"""Questions about versions of shared tables: what a statement sees of appends, as of an ordinary table's INSERTs."""

from script import Step
from sessions import a_change
from tables import forms, table_twins
from table_twins import with_twins
from twins import FRESH_ROWS

COLUMNS = [("id", "int"), ("a", "bigint"), ("b", "bigint"), ("t", "text")]
KEYS = [["id"], ["a"], ["b", "a"], ["t"]]
SOURCE = "SELECT id, a, b, t FROM d2 x"


def _begin(queries):
    """A table %k, anew; what a query needs to know of it."""
    key = queries.one_of(*KEYS)
    drop = "DO $$ BEGIN DROP TABLE IF EXISTS p_k; DROP FOREIGN TABLE IF EXISTS c_k; END $$"
    rows = f"{SOURCE} WHERE x.id <= {queries.integer(0, 40)}"
    return [Step(drop), Step(f"SELECT %share('%k', '{rows}', '{', '.join(key)}')")], {"k": (COLUMNS, key)}


def _rows(queries):
    """A query whose rows are appended, of which some are there already."""
    low = queries.integer(1, 60)
    span = f"x.id BETWEEN {low} AND {low + queries.integer(-1, 12)}"
    of_itself = f"SELECT x.id + 100 AS id, x.a, NULL::bigint AS b, x.t FROM %k x WHERE {span}"
    return queries.one_of(f"{SOURCE} WHERE {span}", f"{SOURCE} WHERE {span}", of_itself)


def _append(queries):
    return f"SELECT %append('%k', '{_rows(queries)}')"


def _read(queries, key):
    """A query on %k, whole, by key or joined."""
    n, one_of = queries.integer, queries.one_of
    of_key = {"id": f"{n(0, 60)}", "a": one_of(f"{n(0, 30)}", "NULL::bigint"), "b": f"{n(0, 5)}", "t": f"'t{n(1, 60)}'"}
    by_key = " AND ".join(f"x.{name} = {of_key[name]}" for name in key)
    joined = " AND ".join(f"x.{name} = y.{name}" for name in key)
    look_up = f"[[%k x|{' ; '.join(f'y.{name}' for name in key)}]]"
    return one_of(
        "SELECT * FROM %k x",
        "SELECT count(*), sum(x.a), max(x.id) FROM %k x",
        f"SELECT * FROM %k x WHERE {by_key}",
        f"SELECT * FROM %k x WHERE {by_key}",
        f"SELECT * FROM [[%k x|{' ; '.join(of_key[name] for name in key)}]]",
        f"SELECT y.id, x.* FROM d2 y {one_of('JOIN', 'LEFT JOIN')} %k x ON {joined} WHERE y.id < 20",
        f"SELECT y.id, x.* FROM d2 y LEFT JOIN {look_up} ON true WHERE y.id < 20",
        f"SELECT y.id FROM d2 y WHERE NOT EXISTS (SELECT FROM %k x WHERE {joined})",
        f"SELECT y.id, x.id, %inc(x.a) FROM d4 y JOIN %k x ON {joined} {one_of('', 'FOR UPDATE OF y', 'FOR UPDATE', 'FOR SHARE OF x')}",
        f"SELECT x.id FROM %k x WHERE {by_key} FOR UPDATE",
    )


def transactions(queries):
    """Appends, savepoints, cursors and prepared statements in one session."""
    begin, declared = _begin(queries)
    key = declared["k"][1]
    steps = [*map(Step, FRESH_ROWS), *begin, Step(f"SET plan_cache_mode = {queries.one_of('auto', 'force_generic_plan')}")]
    steps += [Step(f"PREPARE q AS {_read(queries, key)}"), Step(queries.one_of("BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"))]
    savepoints = cursors = 0
    for _ in range(queries.integer(3, 9)):
        what = queries.one_of("append", "append", "between", "share", "read", "read", "execute", "savepoint", "back", "cursor", "cursor")
        if what == "savepoint":
            savepoints += 1
            steps.append(Step(f"SAVEPOINT s{savepoints}"))
        elif what == "back" and savepoints:
            steps.append(Step(f"{queries.one_of('ROLLBACK TO', 'ROLLBACK TO', 'RELEASE')} s{savepoints}"))
            savepoints -= steps[-1].sql.startswith("RELEASE")
        elif what == "cursor" and not savepoints:
            # One that is opened behind a savepoint ends with it.
            if not cursors:
                scroll = queries.one_of("", "SCROLL ", "NO SCROLL ")
                steps.append(Step(f"DECLARE c {scroll}CURSOR FOR {queries.one_of('SELECT * FROM %k x', 'SELECT %inc(x.a), x.* FROM %k x')}"))
                cursors = 1
            steps.append(Step(f"FETCH {queries.integer(1, 20)} FROM c", is_ordered=True))
        elif what == "append":
            steps.append(Step(_append(queries)))
        elif what == "between":
            append = _append(queries).removeprefix("SELECT ")
            steps.append(Step(queries.one_of(
                f"SELECT %seen(), %seen_before(), {append}, %seen(), %seen_before()",
                f"SELECT x.id, {append}, %seen(), %seen_before(), (SELECT count(*) FROM %k) FROM d2 x WHERE x.id < 4",
                f"SELECT x.id, %inc(x.a), %seen() FROM %k x WHERE x.id < 20 AND {append} >= 0",
            )))  # fmt: skip
        elif what == "share":
            steps.append(Step(f"SELECT %share('%k', '{_rows(queries)}', '{', '.join(key)}')"))
        elif what == "execute":
            steps.append(Step("EXECUTE q"))
        else:
            steps.append(Step(_read(queries, key)))
    if cursors:
        steps.append(Step("FETCH ALL FROM c", is_ordered=True))
    steps += [Step(queries.one_of("COMMIT", "COMMIT", "ROLLBACK")), Step("EXECUTE q"), Step("SELECT * FROM %k")]
    return table_twins("transactions", steps, declared)


def snapshots(queries):
    """Two sessions, each with its own snapshots, which append; one may replace the rows that the other adds to."""
    begin, declared = _begin(queries)
    key = declared["k"][1]
    steps = [*map(Step, FRESH_ROWS), *begin]
    for session in (1, 2):
        steps.append(Step(f"PREPARE q AS {_read(queries, key)}", session=session))
    is_open = {1: False, 2: False}
    level = {}
    for _ in range(queries.integer(5, 12)):
        session = queries.one_of(1, 2)
        what = queries.one_of("begin", "append", "append", "read", "read", "execute", "end", "share")
        if what == "begin" and not is_open[session]:
            level[session] = queries.one_of("READ COMMITTED", "REPEATABLE READ", "REPEATABLE READ, READ ONLY")
            steps.append(Step(f"BEGIN ISOLATION LEVEL {level[session]}", session))
            is_open[session] = True
        elif what == "end" and is_open[session]:
            steps.append(Step(queries.one_of("COMMIT", "COMMIT", "ROLLBACK"), session))
            is_open[session] = False
        elif what == "append" and not (is_open[session] and "ONLY" in level[session]):
            steps.append(Step(_append(queries), session))
        elif what == "share" and not is_open[session]:
            # It waits for whoever appends.
            other = 3 - session
            steps.append(Step(f"SELECT %share('%k', '{_rows(queries)}', '{', '.join(key)}')", session, overlaps=True))
            if is_open[other]:
                steps.append(Step(queries.one_of("COMMIT", "COMMIT", "ROLLBACK"), other))
                is_open[other] = False
            steps.append(Step("SELECT 1", session))
        elif what == "execute":
            steps.append(Step("EXECUTE q", session))
        else:
            steps.append(Step(_read(queries, key).split(" FOR ")[0], session))
    steps += [Step("COMMIT", session) for session in (1, 2) if is_open[session]]
    return table_twins("snapshots", [*steps, Step("SELECT * FROM %k"), Step("SELECT * FROM %k", session=2)], declared)


def encounters(queries):
    """A statement waits for rows that another session changes, while rows are appended to the shared table that it has joined."""
    begin, declared = _begin(queries)
    key = declared["k"][1]
    joined = " AND ".join(f"x.{name} = d4.{name}" for name in key)
    one_each = "(SELECT DISTINCT ON (id) id, a, b, t FROM %k k ORDER BY id, a, b, t) x"
    lowest = queries.integer(1, 20)
    span = f"id BETWEEN {lowest} AND {lowest + queries.integer(0, 12)}"
    first = queries.one_of(
        f"UPDATE d4 SET a = a + 1 WHERE {span}", f"UPDATE d4 SET a = 2, b = 3 WHERE {span}", f"UPDATE d4 SET t = 't9' WHERE {span}",
        f"UPDATE d4 SET t = t, b = NULL WHERE {span}", f"DELETE FROM d4 WHERE {span}",
    )  # fmt: skip
    second = queries.one_of(
        f"SELECT d4.id, d4.a, x.id, x.a, %inc(x.a) FROM d4 JOIN %k x ON {joined} FOR UPDATE OF d4",
        f"SELECT d4.id, d4.a, x.id, x.a FROM d4 LEFT JOIN %k x ON {joined} FOR UPDATE OF d4",
        f"SELECT d4.id, d4.a, x FROM d4 JOIN %k x ON {joined} FOR UPDATE",
        f"SELECT d4.id FROM d4 WHERE EXISTS (SELECT FROM %k x WHERE {joined}) FOR UPDATE",
        f"UPDATE d4 SET b = %inc(x.b), t = x.t FROM {one_each} WHERE x.id = d4.id RETURNING d4.id, x.a",
        f"UPDATE d4 SET b = (SELECT count(*) FROM %k x WHERE {joined})",
        f"DELETE FROM d4 USING {one_each} WHERE x.id = d4.id AND x.a = d4.a",
        f"DELETE FROM d4 WHERE NOT EXISTS (SELECT FROM %k x WHERE {joined})",
        f"MERGE INTO d4 USING {one_each} ON x.id = d4.id WHEN MATCHED AND x.a = d4.a THEN UPDATE SET b = x.b WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT VALUES (x.id, x.a, x.b, x.t)",
    )  # fmt: skip
    if queries.chance(0.4):
        second = a_change(queries)
        while second.startswith("INSERT"):
            second = a_change(queries)
        # Of foreign tables that inherit and have another order of columns, PostgreSQL cannot look at a row again: 42804.
        second = with_twins(second, forms(queries, without=("parts", "heirs")))
    steps = [
        *map(Step, FRESH_ROWS), *begin, Step("BEGIN"), Step(first), Step(queries.one_of(_append(queries), "SELECT 1")),
        Step(f"BEGIN ISOLATION LEVEL {queries.one_of('READ COMMITTED', 'READ COMMITTED', 'REPEATABLE READ')}", session=2),
        Step(second, session=2, overlaps=True), Step(queries.one_of("COMMIT", "COMMIT", "ROLLBACK")),
        Step("SELECT 1", session=2), Step("COMMIT", session=2), Step("SELECT * FROM d4"),
    ]  # fmt: skip
    return table_twins("encounters", steps, declared)
