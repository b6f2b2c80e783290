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


class Excuse:
    """An entry of the list: lines that may differ, where `beside` is given only beside a line that matches it."""

    def __init__(self, pattern, is_due):
        lines, _, beside = pattern.partition(" beside ")
        self.lines, self.beside, self.is_due = re.compile(lines), beside and re.compile(beside), is_due

    def covers(self, line, statement):
        """Whether a line of a statement's differences may differ."""
        return self.lines.search(line) and (not self.beside or any(self.beside.search(other) for other in statement))


def read_excuses(major, rows, parallel):
    """The list's entries for this run, by test."""
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
            excuses[test].append(Excuse(pattern, not runs.endswith("?")))
    return excuses


COUNT = re.compile(r"^\(\d+ rows?\)$")


def differences(plain, lifted, is_ordered):
    """What two outputs do not share, as lists of lines with - or +: one list for what belongs to one statement."""
    if not (plain.exists() and lifted.exists()):
        return [["(one of the runs has no output)"]]
    texts = [path.read_text(errors="replace").splitlines() for path in (plain, lifted)]
    return list(ordered(*texts) if is_ordered else unordered(*texts))


def ordered(before, after):
    statement = []
    for kind, i, j, k, l in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            # A statement is echoed up to its semicolon, and the number of its rows comes behind them.
            if statement and any(line.rstrip().endswith(";") or COUNT.match(line) for line in before[i:j]):
                yield statement
                statement = []
            continue
        statement += [f"-{line}" for line in before[i:j]] + [f"+{line}" for line in after[k:l]]
    if statement:
        yield statement


def unordered(before, after):
    """Rows of one result may come in any order, but stay between their statement and their number."""
    pieces = [list(results(text)) for text in (before, after)]
    keys = [[tuple(sorted(piece)) for piece in each] for each in pieces]
    for kind, i, j, k, l in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        # Pieces that stand for each other one by one are compared so, others together.
        spans = [(i, j, k, l)] if j - i != l - k else [(i + n, i + n + 1, k + n, k + n + 1) for n in range(j - i)]
        for i, j, k, l in spans:
            here = collections.Counter(line for piece in pieces[0][i:j] for line in piece)
            there = collections.Counter(line for piece in pieces[1][k:l] for line in piece)
            statement = [f"-{line}" for line in (here - there).elements()] + [f"+{line}" for line in (there - here).elements()]
            if statement:
                yield statement


def results(lines):
    """The lines up to each number of rows, and up to the end of each statement that is echoed."""
    piece = []
    for line in lines:
        piece.append(line)
        if COUNT.match(line) or line.endswith(";"):
            yield piece
            piece = []
    yield piece


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
        unexcused = []
        for statement in differences(arguments.plain / output, arguments.lifted / output, arguments.parallel == "off"):
            for line in statement:
                found = {excuse for excuse in excuses[test] if excuse.covers(line, statement)}
                met |= found
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
        stale = [test for test in tests for excuse in excuses[test] if excuse.is_due and excuse not in met]
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
