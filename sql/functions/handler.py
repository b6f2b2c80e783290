"""The functions that the regression tests call, well-behaved and not."""

import itertools
import os
import sys
import time

import pyarrow.compute

_calls = itertools.count(1)


def add_one(x: int) -> int:
    return None if x is None else x + 1


def add_one_arrow(x):
    return pyarrow.compute.add(x, 1)


_seen = []


def count_changed(x):
    """How many of all the arrays that it was ever given, and keeps, are not what they were."""
    changed = sum(pyarrow.compute.sum(array).as_py() != total for array, total in _seen)
    _seen.append((x, pyarrow.compute.sum(x).as_py()))
    return pyarrow.array([changed] * len(x))


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


def murmur(text: str) -> str:
    print("called with", text)
    print(text.upper(), file=sys.stderr)
    if text == "fail":
        raise ValueError("as it was told")
    return text


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


def speak(word, number):
    """Text that few encodings have, as a result or as an error."""
    if number == 1:
        raise ValueError(f"{word} は駄目")
    if number == 2:
        raise ValueError(f"{word} costs 5 €, 😀 and \0")
    return word if number == 0 else f"{word} costs 5 €, 😀"


# One pair per type: echo_ goes through Python's values, pass_ through Arrow's.
for _name in (
    "bool int2 int4 int8 float4 float8 text bytea date timestamp timestamptz numeric uuid json time timetz interval inet "
    "cidr macaddr datetime2 ints texts uuids numerics int8range tstzrange numrange point line ranges float4s"
).split():
    globals()[f"echo_{_name}"] = globals()[f"pass_{_name}"] = _same


# Composite results.


def span(a, b):
    if a is None or b is None:
        return None
    if a == 13:
        return (1, 2, 3)
    return {"low": min(a, b), "high": max(a, b), "label": f"{a}-{b}"}


def span_arrow(a, b):
    low, high = pyarrow.compute.min_element_wise(a, b), pyarrow.compute.max_element_wise(a, b)
    return {"low": low, "high": high, "label": [f"{x}-{y}" for x, y in zip(a.to_pylist(), b.to_pylist())]}


def total(values):
    return None if values is None else sum(value or 0 for value in values)


# Table functions.


def divisors(n):
    if n == 13:
        raise ValueError("13 is bad")
    for divisor in range(1, (n or 0) + 1):
        if n % divisor == 0:
            yield divisor


def divisors_arrow(n):
    for row, value in enumerate(n.to_pylist()):
        found = list(divisors(value))
        yield [row] * len(found), pyarrow.array(found, pyarrow.int64())


def count_to(n):
    yield from range(1, n + 1)


def words(text):
    return enumerate(text.split(), 1)


def maybe_pairs(n):
    for number in range(1, (n or 0) + 1):
        yield (number, str(number)) if number % 2 else None


# Map functions.


def running_total(rows):
    total = 0
    for (x,) in rows:
        total += x or 0
        yield x, total


def largest(batches):
    best = (-1, None)
    for batch in batches:
        for row in batch.to_pylist():
            if row["x"] == 13:
                raise ValueError("13 is bad")
            best = max(best, (row["x"], row["t"]))
    yield [best[1]]


def first_only(rows):
    yield next(rows)[0]


# Aggregate functions.


class join_texts:
    def __init__(self):
        self.texts = []

    def step(self, text, separator):
        if text == "bad":
            raise ValueError("bad text")
        self.separator = separator
        if text is not None:
            self.texts.append(text)

    def merge(self, other):
        self.texts += other.texts
        self.separator = other.separator

    def finish(self):
        return self.separator.join(sorted(self.texts)) if self.texts else None


class mean:
    def __init__(self):
        self.count, self.sum = 0, 0.0

    def step(self, x):
        self.count += len(x)
        self.sum += float(x.sum())

    def merge(self, other):
        self.count += other.count
        self.sum += other.sum

    def finish(self):
        return self.sum / self.count if self.count else None


class no_merge:
    def __init__(self):
        self.count = 0

    def step(self, x):
        self.count += 1

    def finish(self):
        return self.count


class at_least_two:
    """Has no result for a single row, and gets no more rows once it was asked for one."""

    def __init__(self):
        self.count, self.is_finished = 0, False

    def step(self, x):
        if self.is_finished:
            raise ValueError("a row after the result")
        self.count += 1

    def finish(self):
        if self.count < 2:
            raise ValueError("a single row")
        self.is_finished = True
        return self.count


class wait_and_count:
    def __init__(self):
        self.count = 0

    def step(self, seconds):
        time.sleep(seconds)
        self.count += 1

    def finish(self):
        return self.count


# For SQL Server, which takes STRICT from the manifest.


def add_one_strict(x):
    return x + 1


def season(month):
    """A dictionary: one place per row, NULL for what is no month, and four texts."""
    places = [month // 3 % 4 if 1 <= month <= 12 else None for month in month.to_pylist()]
    texts = pyarrow.array(["winter", "spring", "summer", "fall or autumn"])
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(places, pyarrow.int8()), texts)


def last_of(first, number, last):
    return last


def pick(place, text):
    """Of the column's texts the one at a place, a dictionary of the argument itself."""
    places = pyarrow.compute.bit_wise_and(place, 1)
    return pyarrow.DictionaryArray.from_arrays(places.cast(pyarrow.int32()), text)


class packed:
    """An aggregate of bytes, which is what states travel as, too."""

    def __init__(self):
        self.texts = []

    def step(self, text):
        self.texts.append(text)

    def merge(self, other):
        self.texts += other.texts

    def finish(self):
        return " ".join(sorted(self.texts)).encode() if self.texts else None


def byte_of(bytes, position):
    return bytes[position]
