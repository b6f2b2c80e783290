import pyarrow.compute as pc


def add_one(x):
    return pc.add(x, 1.0)


def half(x):
    return pc.divide(x, 2.0)


def upper(t):
    return pc.utf8_upper(t)


def reverse(t):
    return pc.utf8_reverse(t)
