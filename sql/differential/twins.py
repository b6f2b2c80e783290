"""The functions that exist twice, once in PL/pgSQL and once in a container, and the tables that the questions are about.

A query names a function %name; p_name and c_name are its two forms, of equal strictness, volatility and cost, so that the
planner makes the same plan for both before calls are lifted.
"""

import re
import threading

import pyarrow
import pyarrow.flight

# name, arguments, result, clauses, PL/pgSQL body, Python body
FUNCTIONS = [
    ("inc", ["bigint"], "bigint", "IMMUTABLE STRICT", "RETURN a1 + 1;", "return a1 + 1"),
    ("add", ["bigint", "bigint"], "bigint", "IMMUTABLE STRICT", "RETURN a1 + a2;", "return a1 + a2"),
    ("pick", ["bigint", "bigint"], "bigint", "STABLE", "RETURN coalesce(a1, a2);", "return a2 if a1 is None else a1"),
    ("seven", [], "bigint", "STABLE", "RETURN 7;", "return 7"),
    ("even", ["bigint"], "boolean", "IMMUTABLE STRICT", "RETURN a1 % 2 = 0;", "return a1 % 2 == 0"),
    ("label", ["bigint"], "text", "IMMUTABLE", "RETURN coalesce('n' || a1, 'none');",
     "return 'none' if a1 is None else f'n{a1}'"),
    ("up", ["text"], "text", "STABLE STRICT", "RETURN upper(a1);", "return a1.upper()"),
    ("size", ["text"], "bigint", "IMMUTABLE STRICT", "RETURN length(a1);", "return len(a1)"),
    ("tag", ["text", "bigint"], "text", "IMMUTABLE", "RETURN concat(a1, '-', a2);",
     "return f\"{'' if a1 is None else a1}-{'' if a2 is None else a2}\""),
    ("echo", ["bigint"], "bigint", "VOLATILE", "RETURN a1;", "return a1"),
    ("both", ["bigint", "bigint"], "d_row", "IMMUTABLE", "RETURN ROW(a1, a2, a1 + a2)::d_row;",
     "return a1, a2, None if a1 is None or a2 is None else a1 + a2"),
    ("maybe", ["bigint"], "d_row", "STABLE", "IF a1 IS NULL OR a1 % 3 = 0 THEN RETURN NULL; END IF; RETURN ROW(a1, NULL, a1)::d_row;",
     "return None if a1 is None or a1 % 3 == 0 else (a1, None, a1)"),
    ("first", ["d_row"], "bigint", "IMMUTABLE STRICT", "RETURN coalesce(a1.id, -1);", "return -1 if a1['id'] is None else a1['id']"),
    ("many", ["bigint"], "SETOF d_row", "STABLE STRICT", "RETURN QUERY SELECT i::bigint, a1, i % 2 FROM generate_series(1, least(a1, 4)) i;",
     "yield from ((i, a1, i % 2) for i in range(1, min(a1, 4) + 1))"),
    ("upto", ["bigint"], "SETOF bigint", "IMMUTABLE STRICT", "RETURN QUERY SELECT generate_series(1, a1 % 5);",
     "yield from range(1, (a1 % 5 if a1 >= 0 else 0) + 1)"),
    ("fail", ["bigint"], "bigint", "IMMUTABLE STRICT", "RETURN 100 / (a1 - 7);", "return int(100 / (a1 - 7))"),
]  # fmt: skip

# Those of which k_name is a form of c_name that keeps its results.
KEPT = [name for name, _, result, clauses, *_ in FUNCTIONS if "IMMUTABLE" in clauses and "SETOF" not in result]
# Roles with a mapping each to one server, whose function says how long the caller's token is. The last may not use the
# server. The superuser has no mapping.
ROLES = {"d_one": "x", "d_two": "xxxx", "d_none": None}

SETUP = """
DROP TABLE IF EXISTS d1, d2, d3, d4 CASCADE;
DROP TYPE IF EXISTS d_row CASCADE;
CREATE TYPE d_row AS (id bigint, a bigint, b bigint);
SELECT setseed(0.25);
CREATE TABLE d1 AS SELECT i AS id, nullif((random() * 20)::bigint, 13) AS a, nullif((random() * 9)::bigint, 4) AS b,
  nullif('t' || i % 30, 't8') AS t FROM generate_series(1, 400) i;
CREATE TABLE d2 AS SELECT i AS id, nullif((random() * 30)::bigint, 3) AS a, (random() * 5)::bigint AS b, 't' || i AS t
  FROM generate_series(1, 60) i;
CREATE TABLE d3 (id int, a bigint, b bigint, t text) PARTITION BY HASH (id);
CREATE TABLE d3_0 PARTITION OF d3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE d3_1 PARTITION OF d3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO d3 SELECT id, a, b, t FROM d1 WHERE id <= 150;
CREATE TABLE d4 (id int PRIMARY KEY, a bigint, b bigint, t text);
DROP AGGREGATE IF EXISTS d_sum (bigint);
DROP SEQUENCE IF EXISTS d_drawn;
CREATE SEQUENCE d_drawn;
CREATE INDEX ON d1 (a);
CREATE INDEX ON d1 (id);
CREATE INDEX ON d2 (a);
ANALYZE d1, d2, d3;
CREATE OR REPLACE FUNCTION d_open(name text, query text) RETURNS refcursor LANGUAGE plpgsql AS
  $f$ DECLARE c refcursor := name; BEGIN OPEN c SCROLL FOR EXECUTE query; RETURN c; END $f$;
CREATE OR REPLACE FUNCTION d_put(value bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
  $f$ BEGIN RETURN set_config('d.put', coalesce(value, 0)::text, false); END $f$;
CREATE OR REPLACE FUNCTION d_adding(sum bigint, value bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
  $f$ BEGIN PERFORM nextval('d_drawn'); RETURN d_put(sum + coalesce(value, 0)); END $f$;
CREATE OR REPLACE FUNCTION d_trigger() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM d_put(new.id); RETURN new; END $f$;
CREATE AGGREGATE d_sum (bigint) (SFUNC = d_adding, STYPE = bigint, INITCOND = 0);
GRANT SELECT ON d1, d2, d3, d4 TO PUBLIC
"""

# d4 is changed by questions, so each begins with these rows.
FRESH_ROWS = ["TRUNCATE d4", "INSERT INTO d4 SELECT id, a, b, t FROM d2 WHERE id <= 30"]


def with_form(sql, prefix):
    """A query with every %name as one of its forms."""
    return re.sub(r"%(?=[a-z])", prefix, sql)


def kept_form(sql):
    """A query with the form k_name of those functions whose results may be kept."""
    return re.sub(f"%(?=({'|'.join(KEPT)})[(])", "k_", sql)


def set_up(connection):
    for statement in SETUP.split(";\n"):
        connection.execute(statement)
    set_up_functions(connection)
    set_up_roles(connection)


def set_up_functions(connection):
    source = ""
    for name, arguments, _, _, _, python in FUNCTIONS:
        source += f"def c_{name}({', '.join(f'a{i + 1}' for i in range(len(arguments)))}):\n    {python}\n"
    for name, arguments, result, clauses, body, _ in FUNCTIONS:
        signature = ", ".join(f"a{i + 1} {kind}" for i, kind in enumerate(arguments))
        for prefix, language, text in (
            ("p_", "plpgsql", f"BEGIN {body} END"),
            ("c_", "container", f"template = \"python\"\nsource = '''\n{source}'''"),
            ("k_", "container", f"template = \"python\"\ncache = true\nfunction = \"c_{name}\"\nsource = '''\n{source}'''"),
        ):
            if prefix == "k_" and name not in KEPT:
                continue
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {prefix}{name}({signature}) RETURNS {result} LANGUAGE {language} {clauses} "
                f"PARALLEL SAFE COST 1000 AS $f${text}$f$"
            )


def set_up_roles(connection):
    """%token(x): the length of the token of the user who calls, as the caller, as its owner, as the role of a SET clause, and
    out of functions in PL/pgSQL that switch roles themselves."""
    lengths = " ".join(f"WHEN '{role}' THEN {len(token)}" for role, token in ROLES.items() if token is not None)
    twin = f"""BEGIN
      IF NOT has_server_privilege('d_server', 'USAGE') THEN RAISE insufficient_privilege; END IF;
      RETURN CASE current_user {lengths} ELSE 0 END;
    END"""
    connection.execute("DROP SERVER IF EXISTS d_server CASCADE")
    connection.execute(f"CREATE SERVER d_server FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'grpc://127.0.0.1:{serve_tokens()}')")
    for role, token in ROLES.items():
        exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
        if not exists:
            connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        connection.execute(f"GRANT USAGE ON LANGUAGE container TO {role}")
        if token is not None:
            connection.execute(f"GRANT USAGE ON FOREIGN SERVER d_server TO {role}")
            connection.execute(f"CREATE USER MAPPING FOR {role} SERVER d_server OPTIONS (token '{token}')")
    for prefix, language, text in (
        ("p_", "plpgsql", twin),
        ("c_", "container", "server = \"d_server\"\nfunction = \"token\""),
    ):
        for name, clauses, owner in (
            ("token", "", "postgres"),
            ("token_of_one", "SECURITY DEFINER", "d_one"),
            ("token_of_none", "SECURITY DEFINER", "d_none"),
            ("token_set_two", "SET role = 'd_two'", "postgres"),
        ):
            connection.execute(f"DROP FUNCTION IF EXISTS {prefix}{name}")
            connection.execute(
                f"CREATE FUNCTION {prefix}{name}(x bigint) RETURNS bigint LANGUAGE {language} STABLE COST 1000 {clauses} AS $f${text}$f$"
            )
            connection.execute(f"ALTER FUNCTION {prefix}{name} OWNER TO {owner}")
        for name, call in (("as_two", f"{prefix}token(x)"), ("sum_as_two", f"(SELECT sum({prefix}token(id)) FROM d2 WHERE id <= x)")):
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {prefix}{name}(x bigint) RETURNS bigint LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1000 "
                f"AS $f$BEGIN RETURN {call}; END$f$"
            )
            connection.execute(f"ALTER FUNCTION {prefix}{name} OWNER TO d_two")


class Token(pyarrow.flight.ServerMiddleware):
    def __init__(self, token):
        self.token = token


class Tokens(pyarrow.flight.ServerMiddlewareFactory):
    def start_call(self, info, headers):
        scheme, _, token = (headers.get("authorization") or [""])[0].partition(" ")
        return Token(token if scheme == "Bearer" else "")


class TokenServer(pyarrow.flight.FlightServerBase):
    """Answers each row with the length of the token that came with the exchange."""

    def do_action(self, context, action):
        if action.type != "transship.hello":
            raise NotImplementedError
        yield b'{"protocol": 1, "server": "tokens", "functions": ["token"]}'

    def get_flight_info(self, context, descriptor):
        fields = [pyarrow.field("x", pyarrow.int64()), pyarrow.field("y", pyarrow.int64())]
        return pyarrow.flight.FlightInfo(pyarrow.schema(fields), descriptor, [], 1, 0)

    def do_exchange(self, context, descriptor, reader, writer):
        schema = pyarrow.schema([pyarrow.field("y", pyarrow.int64())])
        length = len(context.get_middleware("token").token)
        has_begun = False
        for chunk in reader:
            if not has_begun:
                writer.begin(schema)
                has_begun = True
            column = pyarrow.array([length] * chunk.data.num_rows, pyarrow.int64())
            writer.write_with_metadata(pyarrow.record_batch([column], schema=schema), chunk.app_metadata)


def serve_tokens():
    """Starts the server on a port of its own, which is returned."""
    server = TokenServer("grpc://127.0.0.1:0", middleware={"token": Tokens()})
    threading.Thread(target=server.serve, daemon=True).start()
    return server.port
