"""The functions that the regression tests call, well-behaved and not."""

import itertools
import os
import time

import pyarrow.compute

_calls = itertools.count(1)


def add_one(x: int) -> int:
    return None if x is None else x + 1


def add_one_arrow(x):
    return pyarrow.compute.add(x, 1)


def add_one_numpy(x):
    return x + 1


def add_one_pandas(x):
    return x + 1


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


def _same(x):
    return x


# One pair per type: echo_ goes through Python's values, pass_ through Arrow's.
for _name in (
    "bool int2 int4 int8 float4 float8 text bytea date timestamp timestamptz numeric uuid json"
).split():
    globals()[f"echo_{_name}"] = globals()[f"pass_{_name}"] = _same
