"""What a question is made of, and how it is asked: statements of one or two sessions, and what came of each.

A question has two sides that must come to the same. A server that crashes is an outcome like any other, and the next
question finds it started again.
"""

import dataclasses
import os
import socket
import struct
import threading
import time

import psycopg

# What a session always has; a question's own settings come on top and are reset behind it.
OPTIONS = {
    "jit": "off",
    "parallel_setup_cost": "0",
    "parallel_tuple_cost": "0",
    "min_parallel_table_scan_size": "0",
    "statement_timeout": "60s",
    "client_min_messages": "error",
}
# Errors that are never the answer to a question: internal errors, lost connections to a container, broken protocol, limits.
INTERNAL = ("XX", "08", "53", "54", "57P")
TIMED_OUT = "57014"
NOT_ALLOWED = "42501"


@dataclasses.dataclass
class Step:
    """A statement of one session."""

    sql: str
    session: int = 1
    # Rows are compared in the order in which they came.
    is_ordered: bool = False
    # The next step does not wait for this one, only until it waits for a lock or ends.
    overlaps: bool = False
    # How many rows the client asks of the statement at a time, 0 for all the rest; what is left is not asked for.
    portions: tuple = ()


@dataclasses.dataclass
class Side:
    """One way to ask."""

    name: str
    steps: list[Step]

    def __str__(self):
        """The statements as psql takes them."""
        sessions = len({step.session for step in self.steps})
        lines = [
            f"{step.sql};" + (f"  -- session {step.session}" if sessions > 1 else "")
            + (f"  -- rows at a time: {step.portions}" if step.portions else "") for step in self.steps
        ]  # fmt: skip
        return "\n".join([f"-- {self.name}", *lines])


@dataclasses.dataclass
class Question:
    kind: str
    sides: tuple[Side, Side]
    # Both sides make calls, so neither is known to be right.
    is_logic: bool = False
    # Of many such questions some have a batch in a plan.
    is_batched: bool = True


@dataclasses.dataclass
class Outcome:
    """What came of a statement: rows, a statement's tag, an error (SQLSTATE and text), or a crash."""

    word: str
    value: object = None

    def __str__(self):
        return f"{self.word}: {str(self.value)[:600]}"

    @property
    def code(self):
        return self.value[0] if self.word == "error" else ""

    def agrees(self, found):
        """Whether the other side may say so. Of errors only that both fail counts, since the two forms raise different ones;
        internal errors are never right."""
        if "crash" in (self.word, found.word):
            return False
        if found.code.startswith(INTERNAL) and found.code != self.code:
            return False
        return self.word == found.word == "error" or self == found


class Server:
    """Sessions of the cluster that libpq's variables name."""

    def __init__(self):
        self.sessions = {}

    def session(self, number):
        """A session, after a crash a new one."""
        connection = self.sessions.get(number)
        if connection is None or connection.closed:
            connection = self.sessions[number] = connect()
        return connection

    def run(self, side, looks_at_plan=False):
        """The outcome of each step, and whether a plan had a batch. After an error in one session the others go on."""
        is_batched = False
        outcomes = [None] * len(side.steps)
        running = {}
        try:
            for i, step in enumerate(side.steps):
                self.wait_for(running, step.session)
                connection = self.session(step.session)
                if not step.overlaps:
                    outcomes[i] = execute(connection, step)
                    continue

                def work(i=i, step=step, connection=connection):
                    outcomes[i] = execute(connection, step)

                running[step.session] = threading.Thread(target=work)
                running[step.session].start()
                self.wait_until_blocked(running[step.session], connection)
            for number in list(running):
                self.wait_for(running, number)
            if looks_at_plan and all(outcome.word in ("rows", "done") for outcome in outcomes):
                is_batched = self.shows_batches(side)
        finally:
            self.clean_up()
        if any(outcome.word == "crash" for outcome in outcomes):
            # The server ends every session, some of them later than others.
            for connection in self.sessions.values():
                connection.close()
        return outcomes, is_batched

    def wait_for(self, running, number):
        if number in running:
            running.pop(number).join()

    def wait_until_blocked(self, thread, connection):
        watcher = self.session(0)
        process = connection.info.backend_pid
        for _ in range(3000):
            thread.join(0.005)
            if not thread.is_alive():
                return
            try:
                blocking = watcher.execute(f"SELECT pg_catalog.pg_blocking_pids({process})").fetchone()[0]
            except psycopg.Error:
                return
            if blocking:
                return

    def shows_batches(self, side):
        """Whether the plan of one of the statements has a batch."""
        for step in side.steps:
            if step.sql.upper().startswith(("SELECT", "WITH", "DECLARE", "EXECUTE", "UPDATE", "DELETE", "MERGE", "INSERT")):
                try:
                    plan = self.session(step.session).execute("EXPLAIN " + step.sql).fetchall()
                except psycopg.Error:
                    continue
                if any("Container Batch" in line for (line,) in plan):
                    return True
        return False

    def clean_up(self):
        for connection in self.sessions.values():
            if not connection.closed:
                try:
                    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                        connection.execute("ROLLBACK")
                    connection.execute("CLOSE ALL")
                    connection.execute("DEALLOCATE ALL")
                    connection.execute("RESET SESSION AUTHORIZATION")
                    connection.execute("RESET ALL")
                except psycopg.Error:
                    connection.close()


def connect():
    """A new session; waits while the server recovers from a crash."""
    options = " ".join(f"-c {name}={value}" for name, value in OPTIONS.items())
    deadline = time.monotonic() + 120
    while True:
        try:
            return psycopg.connect("", autocommit=True, options=options, prepare_threshold=None)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def message(kind, *parts):
    """A message of the frontend protocol: texts end with a NUL, numbers have 2 or 4 bytes."""
    body = b"".join(part.encode() + b"\0" if isinstance(part, str) else part for part in parts)
    return kind + struct.pack("!i", len(body) + 4) + body


def execute_in_portions(connection, step):
    """As a client does it that asks for some rows of a portal at a time, which libpq does not: past it, over its own connection."""
    none = struct.pack("!h", 0)
    stream = socket.socket(fileno=os.dup(connection.pgconn.socket))
    with stream:
        stream.setblocking(True)
        stream.sendall(message(b"P", "", step.sql, none) + message(b"B", "", "", none, none, none))
        for portion in step.portions:
            stream.sendall(message(b"E", "", struct.pack("!i", portion)))
        stream.sendall(message(b"S"))
        rows, error = [], None
        with stream.makefile("rb") as replies:
            while True:
                kind, length = struct.unpack("!ci", replies.read(5))
                body = replies.read(length - 4)
                if kind == b"D":
                    rows.append(repr(body))
                elif kind == b"E":
                    fields = dict((field[:1], field[1:].decode()) for field in body.split(b"\0") if field)
                    error = (fields[b"C"], fields[b"M"])
                elif kind == b"Z":
                    break
    if error:
        return Outcome("error", error)
    return Outcome("rows", rows if step.is_ordered else sorted(rows))


def execute(connection, step):
    try:
        if step.portions:
            return execute_in_portions(connection, step)
        cursor = connection.execute(step.sql)
        if cursor.description is None:
            return Outcome("done", cursor.statusmessage)
        rows = list(map(repr, cursor.fetchall()))
        return Outcome("rows", rows if step.is_ordered else sorted(rows))
    except psycopg.Error as error:
        if connection.closed or connection.broken or error.sqlstate in ("57P01", "57P02", "57P03"):
            connection.close()
            return Outcome("crash", str(error).strip())
        return Outcome("error", (error.sqlstate or "", str(error).strip()))
