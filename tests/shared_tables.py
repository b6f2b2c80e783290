"""What shared tables promise, on a primary and its standby: shared_tables.py SOCKET_FOLDER PRIMARY_PORT STANDBY_PORT"""

import os
import pathlib
import shutil
import sys
import threading
import time

import psycopg

FOLDER, PRIMARY, STANDBY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LANES = 2
APPENDS = 300
READERS = 3


def connect(port=PRIMARY):
    return psycopg.connect(host=FOLDER, port=port, user="postgres", dbname="postgres", autocommit=True, connect_timeout=30)


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
        a_killed_session_leaves_nothing,
        a_prepared_transaction_is_seen_when_it_commits,
        memory_may_go,
        a_standby_has_the_rows,
    ):
        start = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
