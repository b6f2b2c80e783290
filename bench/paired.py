"""Contenders in turn, round by round, and what is written of them.

A round runs every contender once; the first round warms up and does not count. A ratio is the median of the per-round ratios
to the first contender, so that what disturbs the machine for longer than a round disturbs both sides of it.
"""

import statistics
import sys
import time


def spread(values, scale=1):
    """Median, least and most."""
    values = [value * scale for value in values]
    return f"{statistics.median(values):.3g} [{min(values):.3g}-{max(values):.3g}]"


def seconds_of(contenders, rounds):
    """Seconds per contender and round. contenders: [(name, call, factor)]; call() gives a number, which must be the same for
    all whose factor is 1, and may give the seconds as well, if it takes the time itself; factor is what its time is multiplied
    by."""
    seconds, results = [[] for _ in contenders], {}
    for number in range(rounds + 1):
        for place, (name, call, factor) in enumerate(contenders):
            start = time.perf_counter()
            value = call()
            elapsed = time.perf_counter() - start
            if isinstance(value, tuple):
                value, elapsed = value
            if number:
                seconds[place].append(elapsed * factor)
            if factor == 1:
                results[name] = float(value)
    expected = next(iter(results.values()))
    for name, value in results.items():
        # The order of addition differs, so the last digits may.
        if abs(value - expected) > 1e-9 * abs(expected):
            sys.exit(f"{name} gives {value}, not {expected}")
    return seconds


def ratio(times, base):
    return statistics.median(own / other for own, other in zip(times, base))


def table(title, names, columns):
    """A table in Markdown. columns: [(heading, [seconds of each name])]; each has its ratio to the first name."""
    lines = [f"| {title} | " + " | ".join(f"{heading} | ratio" for heading, _ in columns) + " |"]
    lines.append("|---|" + "---|---|" * len(columns))
    for place, name in enumerate(names):
        cells = [f"{spread(seconds[place])} | {ratio(seconds[place], seconds[0]):.2f}" for _, seconds in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
