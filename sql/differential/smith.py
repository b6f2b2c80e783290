"""Asks what sqlsmith writes: smith.py [QUERIES [SEED]]

sqlsmith (Debian's package) writes random queries over the tables and the container functions of twins.py, and a few of PostgreSQL's
own functions. Most results depend on chance, so a query fails only if the server crashes, or if an internal error appears that does
not appear with batching off. Connects as libpq's variables say, to a database with the extension that nobody else needs.
"""

import os
import subprocess
import sys

import psycopg

from script import INTERNAL, Server, Side, Step
from twins import FRESH_ROWS, FUNCTIONS, set_up

# sqlsmith reads the catalog of a copy of the database in which there is little else than what this is about: it would choose among
# thousands of functions and operators.
TYPES = "(16, 20, 23, 25)"
# What sqlsmith's own queries need.
KEPT = "(16, 18, 19, 20, 21, 23, 25, 26)"
BUILT_IN = """abs length upper lower left right repeat int8 int4 text int8pl int8mi max min count sum bool_and bool_or string_agg""".split()
CATALOG = os.environ["PGDATABASE"] + "_catalog"
TRIM = f"""
CREATE SCHEMA d_smith;
CREATE VIEW d_smith.pg_proc AS SELECT * FROM pg_catalog.pg_proc WHERE
  pronamespace = 'public'::regnamespace AND proname IN ({", ".join(f"'c_{name}'" for name, arguments, *_ in FUNCTIONS if arguments)})
  OR proname IN ({", ".join(f"'{name}'" for name in BUILT_IN)})
    AND NOT EXISTS (SELECT FROM unnest(proargtypes || prorettype) a WHERE a NOT IN {TYPES});
ALTER ROLE d_smith SET search_path = d_smith, public, pg_catalog;
GRANT USAGE ON SCHEMA d_smith TO d_smith;
GRANT SELECT ON d_smith.pg_proc TO d_smith;
GRANT ALL ON d4 TO d_smith;
DO $$ BEGIN EXECUTE format('CREATE OR REPLACE VIEW information_schema.tables AS SELECT * FROM (%s) t WHERE table_schema = %L',
  rtrim(pg_get_viewdef('information_schema.tables'), ';'), 'public'); END $$;
SET allow_system_table_mods = on;
DELETE FROM pg_operator WHERE oprleft NOT IN {KEPT} OR oprright NOT IN {KEPT} OR oprresult NOT IN {KEPT};
"""


def written(count, seed):
    """The queries, in order."""
    with psycopg.connect("dbname=postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {CATALOG}")
        connection.execute(f"CREATE DATABASE {CATALOG} TEMPLATE {os.environ['PGDATABASE']}")
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'd_smith'").fetchone():
            connection.execute("CREATE ROLE d_smith LOGIN")
    with psycopg.connect(f"dbname={CATALOG}", autocommit=True) as connection:
        for statement in TRIM.strip().split(";\n"):
            connection.execute(statement)
    target = f"host={os.environ['PGHOST']} port={os.environ['PGPORT']} dbname={CATALOG} user=d_smith"
    command = ["sqlsmith", f"--target={target}", "--exclude-catalog", "--dry-run", f"--max-queries={count}", f"--seed={seed}"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [query.strip() for query in text.split(";\n") if query.strip()]


def ask(server, query, batching):
    steps = [Step("SET statement_timeout = '5s'"), Step(f"SET transship.batching = {batching}"), Step("BEGIN"), Step(query)]
    side = Side(f"batching {batching}", [*steps, Step("ROLLBACK")])
    outcomes, is_batched = server.run(side, looks_at_plan=True)
    return side, outcomes[len(steps) - 1], is_batched


def main():
    count, seed = (int(argument) for argument in [*sys.argv[1:], *["1000", "1"][len(sys.argv) - 1 :]])
    with psycopg.connect("", autocommit=True) as connection:
        set_up(connection)
        for statement in FRESH_ROWS:
            connection.execute(statement)
    server = Server()
    words = {"rows": 0, "done": 0, "error": 0, "crash": 0}
    batched = failures = 0
    for number, query in enumerate(written(count, seed)):
        side, outcome, is_batched = ask(server, query, "on")
        words[outcome.word] += 1
        batched += is_batched
        if outcome.word != "crash" and not outcome.code.startswith(INTERNAL):
            continue
        # A second look: the server may have ended for a reason outside of this session.
        _, outcome, _ = ask(server, query, "on")
        _, unbatched, _ = ask(server, query, "off")
        if outcome.word == unbatched.word and outcome.code == unbatched.code:
            continue
        failures += 1
        print(f"\n==> query {number} of seed {seed}\n{side}\n-- batching on: {outcome}\n-- batching off: {unbatched}", flush=True)
    print(f"{sum(words.values())} queries of seed {seed}: {words}, {batched} with batches, {failures} that only fail with batches")
    if failures or not batched:
        sys.exit(1)


if __name__ == "__main__":
    main()
