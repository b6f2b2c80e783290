"""Tables that exist twice, ordinary and shared, in every form in which a query meets them.

A statement names a table %name, as it names a function. %share and %append are transship.share and transship.append, and the same of
ordinary tables. [[%name alias|key ; key]] is a look-up.
"""

import re

from twins import with_form

COLUMNS = "id, a, b, t"
# Tables with the rows of d1, d2 and d3: what follows the name, and the key.
KEYS = {"id": "id", "a": "a", "ba": "b, a", "t": "t", "none": None, "segments": "a"}
FORMS = [*KEYS, "parts", "heirs", "barrier"]

FUNCTIONS = """
CREATE OR REPLACE FUNCTION p_share(name text, query text, key text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS
  $f$ DECLARE n bigint; BEGIN
    IF to_regclass(name) IS NOT NULL THEN EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', name); END IF; EXECUTE format(
      CASE WHEN to_regclass(name) IS NULL THEN 'CREATE TABLE %s AS %s' ELSE 'WITH gone AS (DELETE FROM %1$s) INSERT INTO %1$s %2$s' END,
      name, query); GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END $f$;
CREATE OR REPLACE FUNCTION p_append(name text, query text) RETURNS bigint LANGUAGE plpgsql AS
  $f$ DECLARE n bigint; BEGIN EXECUTE format('INSERT INTO %s %s', name, query); GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END $f$;
CREATE OR REPLACE FUNCTION c_share(name text, query text, key text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS
  $f$ BEGIN RETURN transship.share(name, query, key); END $f$;
CREATE OR REPLACE FUNCTION p_unshare(name text) RETURNS void LANGUAGE plpgsql AS
  $f$ BEGIN EXECUTE format('DROP TABLE %I', name); END $f$;
CREATE OR REPLACE FUNCTION c_unshare(name text) RETURNS void LANGUAGE plpgsql AS
  $f$ BEGIN PERFORM transship.unshare(name); END $f$;
CREATE OR REPLACE FUNCTION c_append(name text, query text) RETURNS bigint LANGUAGE plpgsql AS
  $f$ BEGIN RETURN transship.append(name::regclass, query); END $f$
"""
# %seen and %seen_before count the rows of %k, as of now and of when the query began.
SEEN = """
CREATE OR REPLACE FUNCTION %seen() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $f$ BEGIN RETURN (SELECT count(*) FROM %k); END $f$;
CREATE OR REPLACE FUNCTION %seen_before() RETURNS bigint LANGUAGE plpgsql STABLE AS $f$ BEGIN RETURN (SELECT count(*) FROM %k); END $f$
"""


def set_up(connection):
    for statements in (FUNCTIONS, with_form(SEEN, "p_"), with_form(SEEN, "c_")):
        for statement in statements.split(";\n"):
            connection.execute(statement)
    connection.execute("DO $$ DECLARE t regclass; BEGIN FOR t IN SELECT oid FROM pg_class WHERE relkind = 'f' AND relname LIKE 'c\\_%' "
                       "LOOP EXECUTE 'DROP FOREIGN TABLE ' || t || ' CASCADE'; END LOOP; END $$")  # fmt: skip
    for table in ("d1", "d2", "d3"):
        for form, key in KEYS.items():
            rows = f"SELECT {COLUMNS} FROM {table}"
            parts = [f"{rows} WHERE id % 3 = {i}" for i in range(3)] if form == "segments" else [rows]
            # Each segment has a dictionary of its own.
            share(connection, f"c_{table}_{form}", parts, key, "t" if form == "segments" else None)
        set_up_families(connection, table)
        connection.execute(f"CREATE VIEW c_{table}_barrier WITH (security_barrier) AS SELECT {COLUMNS} FROM c_{table}_a WHERE id > 0")
        for form in FORMS:
            connection.execute(f"CREATE OR REPLACE VIEW p_{table}_{form} AS SELECT {COLUMNS} FROM {table}")


def share(connection, name, parts, key, dictionary=None):
    connection.execute("SELECT transship.share(%s, %s, %s, %s)", [name, parts[0], key, dictionary])
    for part in parts[1:]:
        connection.execute("SELECT transship.append(%s::regclass, %s)", [name, part])


def set_up_families(connection, table):
    """Shared partitions and children beside ordinary ones, whose columns are in another order."""
    shared = f"c_{table}"
    for family, clause in (("parts", " PARTITION BY RANGE (id)"), ("heirs", "")):
        connection.execute(f"DROP TABLE IF EXISTS {shared}_{family}, {shared}_part2 CASCADE")
        connection.execute(f"CREATE TABLE {shared}_{family} (id int, a bigint, b bigint, t text){clause}")
    share(connection, f"{shared}_part0", [f"SELECT t, b, a, id FROM {table} WHERE id < 40"], "a")
    share(connection, f"{shared}_part1", [f"SELECT {COLUMNS} FROM {table} WHERE id BETWEEN 40 AND 79"], "id")
    connection.execute(f"CREATE TABLE {shared}_part2 AS SELECT {COLUMNS} FROM {table} WHERE id >= 80")
    connection.execute(f"CREATE INDEX ON {shared}_part2 (a)")
    for i, bounds in enumerate(("(MINVALUE) TO (40)", "(40) TO (80)", "(80) TO (MAXVALUE)")):
        connection.execute(f"ALTER TABLE {shared}_parts ATTACH PARTITION {shared}_part{i} FOR VALUES FROM {bounds}")
    connection.execute(f"INSERT INTO {shared}_heirs SELECT {COLUMNS} FROM {table} WHERE id % 3 = 0")
    share(connection, f"{shared}_heir1", [f"SELECT b, t, a, id FROM {table} WHERE id % 3 = 1"], "a")
    share(connection, f"{shared}_heir2", [f"SELECT {COLUMNS} FROM {table} WHERE id % 3 = 2"], "b, a")
    for i in (1, 2):
        connection.execute(f"ALTER FOREIGN TABLE {shared}_heir{i} INHERIT {shared}_heirs")
    connection.execute(f"ANALYZE {shared}_parts, {shared}_heirs")


def with_twins(sql, forms):
    """A query that reads these forms of d1, d2 and d3."""
    name = lambda found: f"%{found[0]}_{forms[found[0]]}"  # noqa: E731
    sql = re.sub(r"(?<=FROM )d[123]\b(?! [a-z]\b)", lambda found: f"{name(found)} AS {found[0]}", sql)
    return re.sub(r"\bd[123](?= [a-z]\b)", name, sql)


def with_table_form(sql, prefix, declared):
    """A statement in one of its forms; of each table that is looked up in, `declared` has the columns with their types, and the key."""

    def look_up(found):
        name, alias, values = found[1], found[2], found[3]
        columns, key = declared[name.removeprefix("%")]
        if prefix == "c_":
            return f"transship.lookup('{name}', {values}) AS {alias} ({', '.join(f'{column} {kind}' for column, kind in columns)})"
        conditions = " AND ".join(f"k.{column} = {value}" for column, value in zip(key, values.split(" ; ")))
        return f"LATERAL (SELECT k.* FROM {name} k WHERE {conditions}) {alias}"

    sql = re.sub(r"\[\[(\S+) (\w)\|(.*?)\]\]", look_up, sql)
    return with_form(sql.replace(" ; ", ", "), prefix)
