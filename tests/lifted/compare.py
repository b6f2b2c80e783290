#!/usr/bin/env python3
"""Compares what PostgreSQL's tests printed with ordinary functions lifted with what they printed with none lifted.

    compare.py --major N --level user|all --rows N --parallel on|off PLAIN LIFTED

Each difference must stand in the file `differences` beside this script. Each entry there must be met by the run that CI makes
(everything lifted, batches of 3, serial), so that the list cannot grow stale. The script also counts the calls that were
lifted in each test, and fails if there were fewer in all than a floor.
"""

import argparse
import collections
import difflib
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
# Least calls lifted in a whole run of the core suite; a run that lifts less proves nothing.
FLOORS = {"user": 500, "all": 10_000}


def read_excuses(major, rows, parallel):
    """The list's entries for this run: by test, the lines that may differ, and whether some must."""
    excuses = collections.defaultdict(list)
    for number, line in enumerate((HERE / "differences").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" | ", 3)]
        if len(fields) != 4 or not all(fields):
            sys.exit(f"differences, line {number}: test | runs | pattern of the lines | reason")
        test, runs, pattern, _ = fields
        names = {str(major), f"rows-{rows}", f"parallel-{parallel}", "all"}
        if all(run in names for run in runs.rstrip("?").split("+")):
            excuses[test].append((re.compile(pattern), not runs.endswith("?")))
    return excuses


def changed_lines(plain, lifted, is_ordered):
    """Lines that stand in one output only, wherever in it if they are in no order."""
    texts = [path.read_text(errors="replace").splitlines() if path.exists() else [] for path in (plain, lifted)]
    if not (plain.exists() and lifted.exists()):
        return ["(one of the runs has no output)"]
    if not is_ordered:
        before, after = map(collections.Counter, texts)
        return [f"-{line}" for line in (before - after).elements()] + [f"+{line}" for line in (after - before).elements()]
    diff = difflib.unified_diff(*texts, lineterm="", n=0)
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--major", type=int)
    parser.add_argument("--level")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--parallel")
    parser.add_argument("plain", type=pathlib.Path)
    parser.add_argument("lifted", type=pathlib.Path)
    arguments = parser.parse_args()

    excuses = read_excuses(arguments.major, arguments.rows, arguments.parallel)
    outputs = sorted(
        {path.relative_to(root) for root in (arguments.plain, arguments.lifted) for path in root.glob("*/results/*.out")}
    )
    if not outputs:
        sys.exit("no test was run")
    counts = collections.Counter()
    log = arguments.lifted / "lifted"
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        # A session's name may hold a line break.
        name, _, count = line.rpartition(" ")
        if count.isdigit():
            counts[re.sub(r"^(pg_regress|isolation)/", "", name)] += int(count)
    failed, met = [], set()
    for output in outputs:
        suite, test = output.parts[0], output.stem
        # Parallel plans give rows in the order in which workers are done.
        lines = changed_lines(arguments.plain / output, arguments.lifted / output, arguments.parallel == "off")
        unexcused = []
        for line in lines:
            found = {pattern for pattern, _ in excuses[test] if pattern.search(line)}
            met |= {(test, pattern) for pattern in found}
            if not found:
                unexcused.append(line)
        if unexcused:
            failed.append((f"{suite}/{test}", unexcused))
    for name, lines in failed:
        print(f"\n{name}: {len(lines)} lines differ")
        print("\n".join(f"  {line}" for line in lines[:40]))
    stale = []
    if (arguments.level, arguments.rows, arguments.parallel) == ("all", 3, "off"):
        tests = {output.stem for output in outputs}
        stale = [test for test in tests for pattern, is_due in excuses[test] if is_due and (test, pattern) not in met]
    for test in stale:
        print(f"\n{test}: an entry of the list is not needed")
    total = sum(counts.values())
    print("\ncalls lifted by test: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(f"{len(outputs)} tests, {len(failed)} differ; {total} calls lifted")
    if any(output.parts[0] == "core" for output in outputs) and total < FLOORS[arguments.level]:
        sys.exit(f"fewer than {FLOORS[arguments.level]} calls were lifted: the run proves nothing")
    if re.search("was terminated by signal", (arguments.lifted / "log").read_text(errors="replace")):
        sys.exit("a process of the server crashed; see the log of the lifted run")
    sys.exit(1 if failed or stale else 0)


if __name__ == "__main__":
    main()
