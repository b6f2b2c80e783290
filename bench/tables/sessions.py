"""What the parts of this benchmark share: sessions, and where things are."""

import os
import pathlib

import psycopg

ROOT = pathlib.Path(__file__).parents[2]
PGBENCH = pathlib.Path(os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")).with_name("pgbench")
# For each server of this user; half of /dev/shm if that is less.
TABLES_SIZE = "6GB"


def connect():
    connection = psycopg.connect("", autocommit=True, prepare_threshold=None)
    connection.execute("SET max_parallel_workers_per_gather = 0")
    connection.execute("SET work_mem = '1GB'")
    connection.execute("SET jit = off")
    # It would remember what it found, and look-ups are what is measured.
    connection.execute("SET enable_memoize = off")
    connection.execute(f"SET transship.tables_size = '{TABLES_SIZE}'")
    return connection


def unshare(connection, pattern):
    connection.execute("SELECT transship.unshare(relid) FROM transship.shared_tables WHERE name LIKE %s", (pattern,))


def segments_of(connection, name):
    return connection.execute("SELECT segments FROM transship.shared_tables WHERE name = %s", (name,)).fetchone()[0]
