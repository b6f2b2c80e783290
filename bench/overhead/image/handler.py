import pathlib
import pickle

import numpy
import pyarrow.compute

_here = pathlib.Path(__file__).parent
_model = pickle.loads((_here / "model.pkl").read_bytes())
_deep_model = pickle.loads((_here / "deep_model.pkl").read_bytes())


def add_one(x):
    return x + 1


def add_one_batch(x):
    return pyarrow.compute.add(x, 1)


def first(*columns):
    return columns[0]


def upper(t):
    return pyarrow.compute.utf8_upper(t)


def largest_prime_factor(n: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= n:
        if n % divisor:
            divisor += 1
        else:
            largest, n = divisor, n // divisor
    return max(largest, n)


def forest(*columns):
    return _model.predict(numpy.column_stack(columns))


def deep_forest(*columns):
    return _deep_model.predict(numpy.column_stack(columns))


def factor_of_last(*columns):
    return [largest_prime_factor(n) for n in columns[-1].tolist()]
