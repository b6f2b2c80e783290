"""Lines that a handler writes for its caller (docs/protocol.md §4.11)."""

import base64
import contextlib
import io
import json
import sys
import threading

from transship_server import lines


@contextlib.contextmanager
def streams():
    """Standard streams that are collected, and what they are made of. pytest puts its own back at the start of a test."""
    kept = sys.stdout, sys.stderr
    out, err = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    lines.install()
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = kept


def test_lines_are_the_callers_and_stay_in_the_log():
    with streams() as (out, err):
        print("before")
        with lines.collecting(True) as found:
            print("one")
            print("two\nthree", file=sys.stderr)
            thread = threading.Thread(target=print, args=("of a thread",))
            thread.start()
            thread.join()
            sys.stdout.write("no end")
        print("after")
        with lines.collecting(False) as nothing:
            print("unasked")
    assert nothing is None
    assert found.take() == ["one", "two", "three", "no end"]
    assert out.getvalue() == "before\none\nof a thread\nno endafter\nunasked\n" and err.getvalue() == "two\nthree\n"


def test_threads_that_answer_at_the_same_time_have_lines_of_their_own():
    met, found = threading.Barrier(4), {}

    def answer(number):
        with lines.collecting(True) as collected:
            for row in range(10):
                met.wait(10)
                print(number, row)
        found[number] = collected.take()

    with streams():
        threads = [threading.Thread(target=answer, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: [f"{number} {row}" for row in range(10)] for number in range(4)}


def test_lines_are_bounded():
    collected = lines.Lines()
    collected.write("é" * 10_000 + "\n" + "x\n" * 1000 + "y" * 10_000_000)
    texts = collected.take()
    assert len(texts) == lines.MAX_LINES + 1 and texts[0].endswith("...") and len(texts[0].encode()) <= lines.MAX_LINE_BYTES + 3
    assert texts[-1] == "[902 more lines are in the container's log]"
    collected.write("\x01" * 100_000 + "\n")
    for _ in range(1000):
        collected.write("z" * 1000 + "\n\udcff\n")
    assert len(collected.field()) < 8192
    assert collected.take() == []


def test_a_field_is_base64_of_json():
    collected = lines.Lines()
    assert collected.field() == ""
    collected.write("größer\t\x1b[2J\n")
    assert json.loads(base64.b64decode(collected.field())) == ["größer\t\x1b[2J"]


def test_streams_are_still_streams():
    with streams() as (_, err):
        sys.stderr.writelines(["a", "b\n"])
        assert sys.stdout.writable() and sys.stderr.closed is False
    assert err.getvalue() == "ab\n"
