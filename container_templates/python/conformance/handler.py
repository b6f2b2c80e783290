"""The functions of the conformance suite, as docs/conformance.md describes them."""

import time

import transship


def _same(x):
    return x


for _name in (
    "bool int2 int4 int8 float4 float8 text bytea date timestamp timestamptz numeric uuid json time timetz interval inet "
    "cidr macaddr datetime2 array range composite decimals"
).split():
    globals()[f"echo_{_name}"] = _same


def constant():
    return 7


def add(a, b):
    return None if a is None or b is None else a + b


def write_line(x):
    print(x)
    return x


def fail_at(x):
    if x == 13:
        raise ValueError("13 is bad")
    return x


_rows_waited = 0


def wait(seconds):
    global _rows_waited
    _rows_waited += 1
    time.sleep(seconds)
    return seconds


def rows_waited():
    return _rows_waited


def repeat(n):
    yield from range(1, (n or 0) + 1)


def running_sum(rows):
    total = 0
    for (x,) in rows:
        total += x
        yield total


def table_lookup(key):
    return transship.table("numbers").lookup(key)["name"]


class total:
    def __init__(self):
        self.sum = 0

    def step(self, x):
        self.sum += x or 0

    def merge(self, other):
        self.sum += other.sum

    def finish(self):
        return self.sum
