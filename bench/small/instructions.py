"""How many instructions does the library add to statements without container functions?  instructions.py [STATEMENTS]

A cluster of its own runs below valgrind's callgrind, which counts the instructions of each backend. pgbench runs each script in one
backend, so many times and twice as often; half of the difference is a statement without what a session takes to begin and end. Counts
hardly vary, so each is taken once. Both contenders use the same database, which has the extension; one loads the library through
session_preload_libraries. The results replace the part of bench/README.md between the markers.
"""

import datetime
import os
import pathlib
import pwd
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from readme import write_section  # noqa: E402

STATEMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
BIN = pathlib.Path(os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")).parent
SERVER_USER = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
# Until the backends that came before have written their counts.
SETTLE_S = 10
SETUP = """
CREATE EXTENSION transship;
CREATE TABLE accounts AS SELECT i AS aid, i % 10 AS bid, 0 AS abalance, repeat(' ', 84) AS filler FROM generate_series(1, 10000) i;
ALTER TABLE accounts ADD PRIMARY KEY (aid);
CREATE TABLE history (aid int, delta int, mtime timestamp DEFAULT now());
CREATE TABLE t1 AS SELECT i AS id, i % 7 AS next FROM generate_series(1, 100) i;
CREATE TABLE t2 AS SELECT * FROM t1;
CREATE TABLE t3 AS SELECT * FROM t1;
CREATE TABLE t4 AS SELECT * FROM t1;
CREATE TABLE t5 AS SELECT * FROM t1;
ALTER TABLE t1 ADD PRIMARY KEY (id);
ALTER TABLE t2 ADD PRIMARY KEY (id);
ALTER TABLE t3 ADD PRIMARY KEY (id);
ALTER TABLE t4 ADD PRIMARY KEY (id);
ALTER TABLE t5 ADD PRIMARY KEY (id);
CREATE FUNCTION twice(x int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 2 * x; END';
CREATE FUNCTION looped(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE total int := 0; balance int;
BEGIN
  FOR i IN 1..n LOOP
    SELECT abalance INTO balance FROM accounts WHERE aid = i;
    total := total + twice(i) + balance;
  END LOOP;
  RETURN total;
END $$;
VACUUM ANALYZE;
"""
POINT = "\\set aid random(1, 10000)\nSELECT abalance FROM accounts WHERE aid = :aid;\n"
JOIN = (
    "\\set id random(1, 100)\nSELECT t1.id, t5.next FROM t1 JOIN t2 ON t2.id = t1.next JOIN t3 ON t3.id = t2.next "
    "JOIN t4 ON t4.id = t3.next JOIN t5 ON t5.id = t4.next WHERE t1.id = :id;\n"
)
INSERT = "\\set aid random(1, 10000)\nINSERT INTO history (aid, delta) VALUES (:aid, 1);\n"
FUNCTION = "\\set aid random(1, 10000)\nSELECT twice(abalance) FROM accounts WHERE aid = :aid;\n"
LOOP = "SELECT looped(50);\n"
CASES = {
    "one row by its key, prepared": ("prepared", POINT),
    "one row by its key, simple": ("simple", POINT),
    "a join of 5 tables, prepared": ("prepared", JOIN),
    "a join of 5 tables, simple": ("simple", JOIN),
    "INSERT of a row, prepared": ("prepared", INSERT),
    "INSERT of a row, simple": ("simple", INSERT),
    "a PL/pgSQL function of one row, prepared": ("prepared", FUNCTION),
    "a PL/pgSQL function of one row, simple": ("simple", FUNCTION),
    "a PL/pgSQL loop of 50 queries, simple": ("simple", LOOP),
}


def as_server(*command, **options):
    if os.getuid() == 0:
        command = ["setpriv", "--reuid", SERVER_USER, "--regid", SERVER_USER, "--init-groups", "env", "HOME=/tmp", *command]
    return subprocess.Popen([str(part) for part in command], **options)


class Cluster:
    """A cluster whose backends are counted."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = os.environ | {"PGHOST": str(folder), "PGPORT": "5432", "PGUSER": "postgres", "PGDATABASE": "postgres"}

    def start(self, *below):
        settings = {
            "listen_addresses": "", "unix_socket_directories": self.folder, "fsync": "off", "autovacuum": "off", "jit": "off",
            "authentication_timeout": "10min", "checkpoint_timeout": "1d", "max_wal_size": "4GB",
        }  # fmt: skip
        options = [f"--{name}={value}" for name, value in settings.items()]
        log = open(self.folder / "log", "a")
        self.server = as_server(*below, BIN / "postgres", "-D", self.folder / "data", *options, stdout=log, stderr=log)
        for _ in range(600):
            if subprocess.run([BIN / "pg_isready", "-q"], env=self.environment).returncode == 0:
                return
            time.sleep(0.2)
        sys.exit((self.folder / "log").read_text())

    def stop(self):
        self.server.terminate()
        self.server.wait()

    def run(self, *command):
        return subprocess.run([str(part) for part in command], env=self.environment, check=True, capture_output=True, text=True).stdout

    def count(self, script, protocol, statements, library):
        """Instructions of the backend that runs so many statements."""
        before = set(self.folder.glob("counts.*"))
        path = self.folder / "script.sql"
        path.write_text(script)
        self.environment["PGOPTIONS"] = f"-c session_preload_libraries={library}"
        done = self.run(
            BIN / "pgbench", "--no-vacuum", "--random-seed=1", f"--protocol={protocol}", f"--transactions={statements}", f"--file={path}"
        )
        if "number of failed transactions: 0 " not in done:
            sys.exit(done)
        for _ in range(600):
            counts = []
            for file in set(self.folder.glob("counts.*")) - before:
                found = re.search(r"^(?:totals|summary): (\d+)", file.read_text(), re.MULTILINE)
                counts += [int(found[1])] if found else []
            # pgbench's first connection asks for the database, and is another backend's.
            if len(counts) >= 2:
                return max(counts)
            time.sleep(0.1)
        sys.exit("no backend has written its count")


def main():
    lines = ["| statement | instructions | with the library | more |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="transship-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        if os.getuid() == 0:
            server = pwd.getpwnam(SERVER_USER)
            os.chown(folder, server.pw_uid, server.pw_gid)
        as_server(
            BIN / "initdb", "--pgdata", folder / "data", "--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync",
            stdout=subprocess.DEVNULL,
        ).wait()  # fmt: skip
        cluster = Cluster(folder)
        cluster.start()
        subprocess.run([BIN / "psql", "-qX", "-v", "ON_ERROR_STOP=1"], input=SETUP, env=cluster.environment, text=True, check=True)
        cluster.stop()
        # Those that looked whether the server is there would be taken for the first script's.
        cluster.start("valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={folder}/counts.%p")
        time.sleep(SETTLE_S)
        for case, (protocol, script) in CASES.items():
            each = {}
            for library in ("", "transship"):
                # Who comes first tidies tables and catalogs up.
                _, once, twice = (cluster.count(script, protocol, times * STATEMENTS, library) for times in (2, 1, 2))
                each[library] = (twice - once) / STATEMENTS
                if each[library] <= 0:
                    sys.exit(f"{case}: the counts are not those of these runs: {once}, {twice}")
            more = each["transship"] / each[""] - 1
            lines.append(f"| {case} | {each['']:,.0f} | {each['transship']:,.0f} | {100 * more:+.2f} % |")
            print(lines[-1], flush=True)
        cluster.stop()
    version = subprocess.run([BIN / "postgres", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    head = f"{datetime.date.today()}, {STATEMENTS} statements each; PostgreSQL {version}, callgrind, without JIT."
    write_section("instructions", "\n\n".join([head, "\n".join(lines)]))


if __name__ == "__main__":
    main()
