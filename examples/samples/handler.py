"""Small functions: `make pg` has them ready, and the regression tests call them."""

import itertools
import os
import time

import pyarrow.compute as pc

_calls = itertools.count(1)


def add_one(x: int) -> int:
    return None if x is None else x + 1


def add_one_arrow(x):
    return pc.add(x, 1)


def add(a: int, b: int) -> int:
    return a + b


def shout(text: str) -> str:
    return text.upper() + "!"


def seven() -> int:
    return 7


def is_null(x: int | None) -> bool:
    return x is None


def fail_at(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"{x} is bad")
    return x


def exit_at(x: int, bad: int) -> int:
    if x == bad:
        os._exit(3)
    return x


def wait_for(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def wrong_type(x: int) -> int:
    return "not a number" if x == 3 else x


def too_few(x):
    return x[1:]


def process_id(x: int) -> int:
    return os.getpid()


def count_calls(x: int) -> int:
    return next(_calls)
