"""Short calls come one after the other; long ones do not hold up the others."""

import threading
import time

from transship_server.turns import PATIENCE_S, Turns


def run(turns, count, call):
    threads = [threading.Thread(target=lambda: hold(turns, call)) for _ in range(count)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def hold(turns, call):
    with turns.turn():
        call()


def test_short_calls_do_not_meet():
    inside, most, done = [], [], []

    def call():
        inside.append(1)
        most.append(len(inside))
        time.sleep(PATIENCE_S / 50)
        inside.pop()
        done.append(1)

    run(Turns(), 20, call)
    # A machine that stands still for a while makes a short call long.
    assert len(done) == 20 and sorted(most)[15] == 1


def test_long_calls_run_beside_each_other():
    meeting = threading.Barrier(8, timeout=20)
    run(Turns(), 8, meeting.wait)


def test_a_call_that_fails_gives_its_turn_back():
    turns = Turns()
    try:
        with turns.turn():
            raise ValueError
    except ValueError:
        pass
    seen = []
    run(turns, 1, lambda: seen.append(1))
    assert seen == [1]
