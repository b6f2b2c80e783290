"""Aggregates and map functions, whose twins in PL/pgSQL are in ../sets.py."""


class total:
    def __init__(self):
        self.rows = self.nulls = self.sum = 0

    def step(self, x):
        self.rows, self.nulls, self.sum = self.rows + 1, self.nulls + (x is None), self.sum + (x or 0)

    def merge(self, other):
        self.rows, self.nulls, self.sum = self.rows + other.rows, self.nulls + other.nulls, self.sum + other.sum

    def finish(self):
        return f"{self.rows} {self.nulls} {self.sum}" if self.rows else None


class gather:
    def __init__(self):
        self.values = []

    def step(self, x):
        self.values.append("-" if x is None else str(x))

    def finish(self):
        return ",".join(self.values) if self.values else None


def running(rows):
    total = 0
    for (x,) in rows:
        total += x or 0
        yield x, total


def heads(rows):
    for _, (x,) in zip(range(3), rows):
        yield x


def repeated(rows):
    for (x,) in rows:
        yield from ((x, i) for i in range(1, (x or 0) % 3 + 1))
