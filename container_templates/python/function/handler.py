"""The handler: plain functions."""

import pyarrow.compute


def add_one(x):
    """One row at a time; NULL is None."""
    return None if x is None else x + 1


def hypotenuse(a, b):
    """A whole batch at a time (batch = "arrow" in transship.toml)."""
    return pyarrow.compute.sqrt(pyarrow.compute.add(pyarrow.compute.multiply(a, a), pyarrow.compute.multiply(b, b)))


def words(text):
    """A table function: any number of results for each row."""
    yield from text.split()


class longest:
    """An aggregate function: an instance per group of rows; merge lets queries run in parallel."""

    def __init__(self):
        self.text = None

    def step(self, text):
        if text is not None and (self.text is None or len(text) > len(self.text)):
            self.text = text

    def merge(self, other):
        self.step(other.text)

    def finish(self):
        return self.text
