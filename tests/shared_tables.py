"""What shared tables promise, on a primary and its standby: shared_tables.py SOCKET_FOLDER PRIMARY_PORT STANDBY_PORT"""

import os
import pathlib
import shutil
import sys
import threading
import time
from random import Random

import psycopg

FOLDER, PRIMARY, STANDBY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LANES = 2
APPENDS = 300
READERS = 3
WRITERS = 4
TRANSACTIONS = 150


def connect(port=PRIMARY, options=""):
    return psycopg.connect(host=FOLDER, port=port, user="postgres", dbname="postgres", autocommit=True, connect_timeout=30, options=options)


def ask(connection, query, *values):
    return connection.execute(query, values or None).fetchone()


def wait_for(condition, what):
    for _ in range(600):
        try:
            if condition():
                return
        except psycopg.Error:
            pass
        time.sleep(0.1)
    sys.exit(f"waited in vain: {what}")


def check(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {found}, not {expected}")


def in_threads(*works):
    """Runs all at the same time, and ends the program if one fails."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as failure:  # noqa: BLE001, what a thread raises is lost otherwise
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        if thread.is_alive():
            sys.exit("a session hangs")
    if failures:
        sys.exit(f"a session failed: {failures[0]!r}")


def versions_are_prefixes():
    """Whoever reads while others append sees a prefix of each one's rows, and never less than before."""
    with connect() as connection:
        ask(connection, "SELECT transship.share('lanes', 'SELECT 0 AS lane, 0 AS number WHERE false', 'lane, number')")
    is_done = threading.Event()

    def append(lane):
        with connect() as connection:
            for number in range(1, APPENDS + 1):
                ask(connection, f"SELECT transship.append('lanes', 'SELECT {lane} AS lane, {number} AS number')")

    def append_all():
        in_threads(*(lambda lane=lane: append(lane) for lane in range(LANES)))
        is_done.set()

    def read():
        seen = [0] * LANES
        with connect() as connection:
            while not is_done.is_set():
                for lane in range(LANES):
                    count, most, total = ask(
                        connection, "SELECT count(*), coalesce(max(number), 0), coalesce(sum(number), 0) FROM lanes WHERE lane = %s", lane
                    )
                    check((most, total), (count, count * (count + 1) // 2), "rows of a lane")
                    if count < seen[lane]:
                        sys.exit(f"a lane of {seen[lane]} rows has {count}")
                    seen[lane] = count
                    if count:
                        found = ask(connection, "SELECT count(*) FROM lanes WHERE lane = %s AND number = %s", lane, count)
                        check(found, (1,), "rows of the newest key")

    in_threads(append_all, *[read] * READERS)
    with connect() as connection:
        check(ask(connection, "SELECT count(*), count(DISTINCT (lane, number)) FROM lanes"), (LANES * APPENDS,) * 2, "rows")
        (segments,) = ask(connection, "SELECT segments FROM transship.shared_tables WHERE name = 'lanes'")
        if segments > 40:
            sys.exit(f"{segments} segments after {LANES * APPENDS} appends")


DIFFERENCES = """SELECT (SELECT count(*) FROM (TABLE followed EXCEPT ALL TABLE followed_source) d)
    + (SELECT count(*) FROM (TABLE followed_source EXCEPT ALL TABLE followed) d)"""


def a_followed_table_is_its_query():
    """Each snapshot sees the same rows in a shared table and in the query that it follows, whatever others write."""
    with connect() as connection:
        connection.execute("CREATE TABLE pieces (id serial PRIMARY KEY, size int, writer int)")
        ask(connection, "SELECT transship.share('followed', 'SELECT id, size * 2 AS double FROM pieces WHERE size % 5 > 0', 'id', follow => true)")
    is_done = threading.Event()
    committed = [0] * WRITERS
    levels = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

    def change(cursor, random, writer):
        size, some = random.randrange(1000), random.randrange(1, 2000)
        statements = [
            f"INSERT INTO pieces (size, writer) VALUES ({size}, {writer})",
            f"INSERT INTO pieces (size, writer) SELECT i, {writer} FROM generate_series({size}, {size + 9}) i",
            f"UPDATE pieces SET size = size + 1 WHERE id % 50 = {some % 50}",
            f"DELETE FROM pieces WHERE id BETWEEN {some} AND {some + 2}",
            f"INSERT INTO pieces VALUES ({some}, {size}, {writer}) ON CONFLICT (id) DO UPDATE SET size = {size}",
            f"WITH gone AS (DELETE FROM pieces WHERE id = {some} RETURNING *) INSERT INTO pieces SELECT id + 100000, size, writer FROM gone",
        ]
        cursor.execute(random.choices(statements, (8, 4, 1, 1, 1, 1))[0])

    def write(writer):
        random = Random(writer)
        with connect() as connection:
            connection.execute("SET deadlock_timeout = '20ms'")
            for _ in range(TRANSACTIONS):
                try:
                    connection.execute(f"BEGIN ISOLATION LEVEL {random.choices(levels, (4, 1, 1))[0]}")
                    for _ in range(random.randrange(1, 4)):
                        connection.execute("SAVEPOINT s")
                        change(connection, random, writer)
                        check(ask(connection, DIFFERENCES), (0,), "differences within a transaction")
                        if random.random() < 0.2:
                            connection.execute("ROLLBACK TO s")
                    connection.execute("ROLLBACK" if random.random() < 0.1 else "COMMIT")
                    committed[writer] += 1
                except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    connection.execute("ROLLBACK")

    def write_all():
        in_threads(*(lambda writer=writer: write(writer) for writer in range(WRITERS)))
        is_done.set()

    def read():
        with connect() as connection:
            while not is_done.is_set():
                check(ask(connection, DIFFERENCES), (0,), "differences")

    in_threads(write_all, read)
    if min(committed) < TRANSACTIONS // 10:
        sys.exit(f"of {TRANSACTIONS} transactions each, these were committed: {committed}")
    with connect() as connection:
        check(ask(connection, DIFFERENCES), (0,), "differences afterwards")
        print(f"committed: {committed}; rows and segments: {ask(connection, 'SELECT rows, segments FROM transship.shared_tables WHERE name = %s', 'followed')}")


def sharing_misses_no_row():
    """A table begins to follow while others insert: rows of transactions that were open before and after are there once."""
    with connect() as connection:
        connection.execute("CREATE TABLE streams (id int)")
    is_done = threading.Event()

    def insert(lane):
        with connect() as connection:
            for number in range(200):
                connection.execute("INSERT INTO streams VALUES (%s)", (lane * 1000 + number,))

    def insert_all():
        in_threads(*(lambda lane=lane: insert(lane) for lane in range(3)))
        is_done.set()

    def share():
        with connect() as connection:
            while not is_done.is_set():
                ask(connection, "SELECT transship.share('stream', 'SELECT id FROM streams', follow => true)")
                time.sleep(0.02)

    try:
        in_threads(insert_all, share)
    finally:
        is_done.set()
    with connect() as connection:
        expected = ask(connection, "SELECT count(*), count(*), sum(id) FROM streams")
        check(ask(connection, "SELECT count(*), count(DISTINCT id), sum(id) FROM stream"), expected, "rows")


def a_followed_table_is_prepared_with_its_source():
    with connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO pieces VALUES (-1, 1, 1)")
        connection.execute("PREPARE TRANSACTION 'inserted'")
        with connect() as other:
            check(ask(other, DIFFERENCES), (0,), "differences beside a prepared transaction")
            try:
                other.execute("SET lock_timeout = '200ms'; UPDATE pieces SET size = size + 1")
                sys.exit("an update did not wait for a prepared transaction")
            except psycopg.errors.LockNotAvailable:
                pass
        connection.execute("COMMIT PREPARED 'inserted'")
        check(ask(connection, "SELECT double FROM followed WHERE id = -1"), (2,), "a row of a prepared transaction")
        check(ask(connection, DIFFERENCES), (0,), "differences afterwards")


def a_fixed_snapshot_loses_no_rows():
    """Of a source that was written anew, and of one that another transaction has begun to follow without any row."""
    rows = "SELECT (SELECT array_agg(t ORDER BY id) FROM {} t)::text"
    with connect() as connection, connect() as other:
        connection.execute("CREATE TABLE rewritten (id int, v int)")
        connection.execute("INSERT INTO rewritten SELECT i, i FROM generate_series(1, 10) i")
        ask(connection, "SELECT transship.share('of_rewritten', 'SELECT id, v FROM rewritten', follow => true)")
        connection.execute("CREATE TABLE begun (id int, v int)")
        connection.execute("INSERT INTO begun VALUES (1, 1)")
        for statement, inserted, updated in (
            (
                "ALTER TABLE rewritten ADD z float8 DEFAULT random()",
                "INSERT INTO rewritten VALUES (100, 100, 0)",
                "UPDATE rewritten SET v = 101 WHERE id = 100",
            ),
            (
                "DELETE FROM begun; SELECT transship.share('of_begun', 'SELECT id, v FROM begun WHERE v > 0', follow => true)",
                "INSERT INTO begun VALUES (100, -5)",
                "UPDATE begun SET v = -6 WHERE id = 100",
            ),
        ):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            ask(connection, "SELECT count(*) FROM pg_class")
            other.execute(statement)
            try:
                connection.execute(inserted)
                connection.execute(updated)
                connection.execute("COMMIT")
            except psycopg.errors.SerializationFailure:
                connection.execute("ROLLBACK")
        for table, query in (("rewritten", "SELECT id, v FROM rewritten"), ("begun", "SELECT id, v FROM begun WHERE v > 0")):
            found, expected = ask(other, rows.format(f"of_{table}")), ask(other, rows.format(f"({query})"))
            check(found, expected, f"rows of {table}")
            ask(other, f"SELECT transship.unshare('of_{table}')")


def one_row_inserts():
    """How many one-row inserts a session makes a second, without and with a table that follows."""
    with connect() as connection:
        connection.execute("CREATE TABLE plain (id int, t text); CREATE TABLE watched (id int, t text)")
        ask(connection, "SELECT transship.share('watching', 'SELECT id, t FROM watched', 'id', follow => true)")
        for table in ("plain", "watched"):
            start = time.monotonic()
            for number in range(1000):
                connection.execute(f"INSERT INTO {table} VALUES ({number}, 'some text')")
            print(f"{table}: {1000 / (time.monotonic() - start):.0f} inserts/s")
        check(ask(connection, "SELECT count(*), count(DISTINCT id) FROM watching"), (1000, 1000), "rows")


def replication_does_not_write_to_a_followed_table():
    """A subscription to a followed table fails, as it fires no triggers of statements."""
    with connect() as connection:
        connection.execute("CREATE DATABASE publisher")
        with psycopg.connect(host=FOLDER, port=PRIMARY, user="postgres", dbname="publisher", autocommit=True) as publisher:
            publisher.execute("CREATE TABLE streams (id int); CREATE PUBLICATION streams FOR TABLE streams")
            ask(publisher, "SELECT pg_create_logical_replication_slot('streams', 'pgoutput')")
            connection.execute(
                f"CREATE SUBSCRIPTION streams CONNECTION 'host={FOLDER} port={PRIMARY} user=postgres dbname=publisher' PUBLICATION streams"
                " WITH (create_slot = false, copy_data = false, slot_name = 'streams')"
            )
            publisher.execute("INSERT INTO streams VALUES (-5)")
            log = pathlib.Path(FOLDER) / "primary.log"
            refused = 'logical replication cannot write to table "streams"'
            wait_for(lambda: refused in log.read_text(), "the error of the subscription")
            check(ask(connection, "SELECT (SELECT count(*) FROM streams WHERE id < 0), (SELECT count(*) FROM stream WHERE id < 0)"), (0, 0), "rows")
            # Once nothing follows, the rows come.
            ask(connection, "SELECT transship.unshare('stream')")
            wait_for(lambda: ask(connection, "SELECT count(*) FROM streams WHERE id < 0") == (1,), "the publisher's rows")
            connection.execute("DROP SUBSCRIPTION streams")
        connection.execute("DROP DATABASE publisher WITH (FORCE)")


def replication_does_not_write_rows_of_shared_tables():
    """A publication for all tables has the extension's own, which a subscription refuses to write, rather than mix two databases' rows."""
    with connect() as connection:
        connection.execute("CREATE DATABASE publisher")
        ask(connection, "SELECT transship.share('mixed', 'SELECT i AS id FROM generate_series(1, 10) i', 'id')")
        with psycopg.connect(host=FOLDER, port=PRIMARY, user="postgres", dbname="publisher", autocommit=True) as publisher:
            publisher.execute("CREATE EXTENSION transship; CREATE PUBLICATION everything FOR ALL TABLES")
            refuses_to_apply(connection, publisher, "TRUNCATE transship.table_segments, transship.table_chunks")
            # As after `pg_restore --data-only --disable-triggers`.
            for name in ("table_segments", "table_chunks", "followed_tables"):
                connection.execute(f"ALTER TABLE transship.{name} DISABLE TRIGGER ALL; ALTER TABLE transship.{name} ENABLE TRIGGER ALL")
            refuses_to_apply(connection, publisher, "SELECT transship.share('mixed', 'SELECT i AS id FROM generate_series(100, 105) i', 'id')")
            for name in ("table_segments", "table_chunks", "followed_tables"):
                connection.execute(
                    f"ALTER TABLE transship.{name} ENABLE REPLICA TRIGGER refuse_deleted, ENABLE REPLICA TRIGGER refuse_truncated"
                )
            connection.execute("ALTER TABLE transship.table_segments ENABLE ALWAYS TRIGGER leave_segment")
        connection.execute("DROP DATABASE publisher WITH (FORCE)")
        # Elsewhere, the same setting means a restore, which has its rows.
        connection.execute("SET session_replication_role = replica")
        ask(connection, "SELECT transship.append('mixed', 'SELECT 11 AS id')")
        check(ask(connection, "SELECT count(*), max(id) FROM mixed"), (11, 11), "rows")
        ask(connection, "SELECT transship.unshare('mixed')")


def refuses_to_apply(connection, publisher, statement):
    """What the statement does to the publisher's shared tables, a subscription to all of its tables refuses to do here."""
    log = pathlib.Path(FOLDER) / "primary.log"
    refused = "logical replication cannot write the rows of shared tables"
    errors = log.read_text().count(refused)
    ask(publisher, "SELECT pg_create_logical_replication_slot('everything', 'pgoutput')")
    connection.execute(
        f"CREATE SUBSCRIPTION everything CONNECTION 'host={FOLDER} port={PRIMARY} user=postgres dbname=publisher' PUBLICATION everything"
        " WITH (create_slot = false, copy_data = false, slot_name = 'everything')"
    )
    publisher.execute(statement)
    wait_for(lambda: log.read_text().count(refused) > errors, "the error of the subscription")
    check(ask(connection, "SELECT count(*), max(id) FROM mixed"), (10, 10), "rows")
    connection.execute("ALTER SUBSCRIPTION everything DISABLE; ALTER SUBSCRIPTION everything SET (slot_name = NONE)")
    connection.execute("DROP SUBSCRIPTION everything")
    wait_for(lambda: ask(publisher, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'everything'") == (True,), "the slot")
    ask(publisher, "SELECT pg_drop_replication_slot('everything')")


def a_killed_session_leaves_nothing():
    """A session that is killed while it shares, with the restart of the whole server that follows, changes nothing."""
    with connect() as connection:
        ask(connection, "SELECT transship.share('whole', 'SELECT i AS id FROM generate_series(1, 1000) i', 'id')")
    victim = connect()
    (pid,) = ask(victim, "SELECT pg_backend_pid()")

    def share():
        try:
            ask(victim, "SELECT transship.share('whole', 'SELECT i AS id FROM generate_series(1, 50000000) i', 'id')")
            sys.exit("it was not killed")
        except psycopg.OperationalError:
            pass

    def kill():
        with connect() as connection:
            # Some of its segments are written.
            wait_for(lambda: ask(connection, "SELECT pg_total_relation_size('transship.table_chunks') > 30000000")[0], "chunks")
        os.kill(pid, 9)

    def is_ended(session):
        try:
            ask(session, "SELECT 1")
        except psycopg.OperationalError:
            return True

    witness = connect()
    in_threads(share, kill)
    wait_for(lambda: is_ended(witness), "the end of all sessions")
    wait_for(lambda: connect().close() is None, "the server's restart")
    with connect() as connection:
        check(ask(connection, "SELECT count(*), sum(id) FROM whole"), (1000, 500500), "rows after the crash")
        check(ask(connection, "SELECT count(*) FROM whole WHERE id = 1000"), (1,), "a key after the crash")
        ask(connection, "SELECT transship.append('whole', 'SELECT 1001 AS id')")
        check(ask(connection, "SELECT count(*), sum(id) FROM whole"), (1001, 501501), "rows afterwards")


def a_prepared_transaction_is_seen_when_it_commits():
    with connect() as connection, connect() as other:
        connection.execute("BEGIN")
        ask(connection, "SELECT transship.append('whole', 'SELECT 5000 AS id')")
        connection.execute("PREPARE TRANSACTION 'appended'")
        check(ask(other, "SELECT count(*) FROM whole WHERE id = 5000"), (0,), "rows of a prepared transaction")
        connection.execute("COMMIT PREPARED 'appended'")
        check(ask(other, "SELECT count(*) FROM whole WHERE id = 5000"), (1,), "rows of a committed transaction")


def memory():
    return next(pathlib.Path("/dev/shm").glob("transship-tables.*"))


def memory_may_go():
    """What is taken out of memory, the folder included, is read again, by many sessions at once."""
    with connect() as connection:
        ask(connection, "SELECT transship.share('cold', 'SELECT i AS id, md5(i::text) AS t FROM generate_series(1, 200000) i', 'id')")
        check(ask(connection, "SELECT t FROM cold WHERE id = 7"), ("8f14e45fceea167a5a36dedd4bea2543",), "a row")
        shutil.rmtree(memory())

        def read():
            with connect() as reader:
                check(ask(reader, "SELECT count(*), count(DISTINCT t) FROM cold"), (200000, 200000), "rows of a cold table")

        in_threads(*[read] * 6)
        check(ask(connection, "SELECT t FROM cold WHERE id = 7"), ("8f14e45fceea167a5a36dedd4bea2543",), "a row")
        if any(file.name.startswith("reserved") for file in memory().iterdir()):
            sys.exit("room stays reserved")
        files = {file.name for file in memory().iterdir()}
        if not any(name.endswith(".arrow") for name in files):
            sys.exit(f"nothing is in memory: {files}")


ON_DISK = "-c transship.tables_size=1MB -c transship.tables_disk_size=64MB"


def disk():
    return pathlib.Path(FOLDER) / "primary/base/pgsql_tmp/pgsql_tmp.transship-tables.1"


def segments_on_disk():
    return [file for file in disk().glob("*.arrow")] if disk().exists() else []


def a_disk_that_fails_ends_a_session():
    """A session whose mapped file is shortened ends, and nothing else does. Crashes and restarts leave no files on disk."""
    rows = "SELECT count(*), count(DISTINCT t), sum(id) FROM spilled"
    expected = (30000, 30000, 450015000)
    witness = connect(options=ON_DISK)
    ask(witness, "SELECT transship.share('spilled', 'SELECT i AS id, md5(i::text) || md5(i::text) AS t FROM generate_series(1, 30000) i', 'id')")
    check(ask(witness, rows), expected, "rows on disk")
    (file,) = segments_on_disk()
    check(file.stat().st_mode & 0o777, 0o400, "the mode of a file on disk")
    for query in ("SELECT sum(length(t)) FROM spilled", "SELECT t FROM spilled WHERE id = 29000", "SELECT t FROM spilled ORDER BY t"):
        (file,) = segments_on_disk()
        victim = connect(options=ON_DISK)
        victim.execute("BEGIN")
        victim.execute("DECLARE c CURSOR FOR SELECT * FROM spilled")
        victim.execute("FETCH 1 FROM c")
        os.truncate(file, 4096)
        try:
            victim.execute(query)
            sys.exit("a shortened file was read")
        except psycopg.OperationalError as failure:
            if "could not read a mapped file of a shared table" not in str(failure):
                raise
        check(ask(witness, "SELECT 1"), (1,), "another session")
        # The file is not whole, and loaded again.
        with connect(options=ON_DISK) as other:
            check(ask(other, rows), expected, "rows after a fault")
    (pid,) = ask(witness, "SELECT pg_backend_pid()")
    (disk() / "stray.arrow").write_bytes(b"stray")
    os.kill(pid, 9)
    wait_for(lambda: connect().close() is None and not disk().exists(), "the end of the files on disk")
    with connect(options=ON_DISK) as connection:
        check(ask(connection, rows), expected, "rows after the crash")
        check(len(segments_on_disk()), 1, "files after the crash")
        ask(connection, "SELECT transship.unshare('spilled')")
        check(segments_on_disk(), [], "files of a dropped table")


def a_standby_has_the_rows():
    with connect() as connection, connect(STANDBY) as standby:
        (end,) = ask(connection, "SELECT pg_current_wal_flush_lsn()")
        wait_for(lambda: ask(standby, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", str(end))[0], "the standby")
        query = "SELECT count(*), sum(id), (SELECT count(*) FROM whole WHERE id = 1001) FROM whole"
        check(ask(standby, query), ask(connection, query), "rows of the standby")
        try:
            ask(standby, "SELECT transship.append('whole', 'SELECT 1 AS id')")
            sys.exit("a standby was written to")
        except psycopg.errors.ReadOnlySqlTransaction:
            pass


def main():
    with connect() as connection:
        connection.execute("CREATE EXTENSION transship")
    for test in (
        versions_are_prefixes,
        a_followed_table_is_its_query,
        sharing_misses_no_row,
        a_followed_table_is_prepared_with_its_source,
        a_fixed_snapshot_loses_no_rows,
        replication_does_not_write_to_a_followed_table,
        replication_does_not_write_rows_of_shared_tables,
        one_row_inserts,
        a_killed_session_leaves_nothing,
        a_prepared_transaction_is_seen_when_it_commits,
        memory_may_go,
        a_disk_that_fails_ends_a_session,
        a_standby_has_the_rows,
    ):
        start = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
