"""The functions that tests/spark.sh calls from Spark."""

import datetime

import pyarrow.compute


def add(a, b):
    return None if a is None or b is None else a + b


def shout(text):
    return pyarrow.compute.utf8_upper(text)


def day_after(moment):
    return None if moment is None else moment + datetime.timedelta(days=1)


def total(values):
    return None if values is None else {"sum": sum(values), "count": len(values)}


def fail_at(x):
    if x == 13:
        raise ValueError("13 is bad")
    return x


def strict_fail_at(x):
    return fail_at(x)


def count_all():
    return 1


def is_null(x, y):
    return x is None or y is None


def strict_is_null(x, y):
    return is_null(x, y)


def tenth(d):
    return None if d is None else d / 10


def swap(pair):
    return None if pair is None else {"a": pair["b"], "b": pair["a"]}
