"""The functions that `make pg` has ready: three take a row, the last takes a whole batch as a NumPy array."""

import numpy


def add_one(x: int) -> int:
    return x + 1


def shout(text: str) -> str:
    return text.upper() + "!"


def largest_prime_factor(n: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= n:
        if n % divisor:
            divisor += 1
        else:
            largest, n = divisor, n // divisor
    return max(largest, n)


def log1p_of(x):
    return numpy.log1p(x)
