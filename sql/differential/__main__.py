"""Do batched calls change any result?  differential [QUESTIONS [SEED [FIRST]]]

Random questions, each asked in two ways that must come to the same: with functions in PL/pgSQL and with the same functions in
a container, of ordinary tables and of shared ones, or in two ways that logic says are one. Connects as libpq's variables say, to a
database in which sql/setup.sql was run, and fails if any question's sides differ, or if the server crashes. A question depends on its
number and the seed alone, so that `differential 1 SEED NUMBER` asks it again.
"""

import collections
import sys
import time

import logic
import sessions
import sets
import table_twins
import tables
from queries import Queries
from script import NOT_ALLOWED, OPTIONS, TIMED_OUT, Server, Step
from shapes import shapes
from twins import set_up
import versions

# How often each kind is asked, compared with the others.
ONE_STATEMENT = {
    "plain": 20, "common": 8, "initplans": 8, "grouping_sets": 6, "empty_aggregates": 3, "window_conditions": 6, "window_arguments": 2,
    "lateral_subselects": 6, "composites": 4, "subplans_in_aggregates": 7, "recursion": 3, "set_operations": 3,
}  # fmt: skip
SEVERAL_STATEMENTS = {
    sessions.prepared: 6, sessions.cursors: 8, sessions.locking_cursors: 3, sessions.changes: 4, sessions.meetings: 6, sessions.effects: 4,
    sessions.turns: 8, sessions.stops: 6, sessions.roles: 6, logic.partitions: 6, logic.counts: 5, logic.having_partitions: 3,
    logic.batching: 4, logic.fusion: 5, logic.keeping: 2, shapes: 10, sets.own_aggregates: 5, sets.maps: 4, tables.tables: 12,
    tables.values: 6, versions.transactions: 5, versions.snapshots: 3, versions.encounters: 3,
}  # fmt: skip
# Of so many questions of a kind that makes calls, some must be batched.
ENOUGH = 20
# Failures of a kind that are printed in full.
PRINTED = 5


def settings(queries):
    """Ways to plan and to batch that must not matter."""
    names = ["enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_seqscan", "enable_hashagg", "enable_memoize"]
    chosen = {name: "off" for name in names if queries.chance(1 / 3)}
    if queries.chance(2 / 3):
        chosen["max_parallel_workers_per_gather"] = "0"
    chosen["transship.batch_rows"] = queries.one_of("1", "7", "7", "10000", "10000", "10000", "10000")
    chosen["transship.batch_window"] = queries.one_of("1", "3")
    chosen["transship.transport"] = queries.one_of("flight", "auto", "json")
    return [Step(f"SET {name} = '{value}'") for name, value in {**chosen, **queries.settings}.items()]


def make_question(seed, number):
    queries = Queries(f"{seed} {number}")
    kinds = {**ONE_STATEMENT, **SEVERAL_STATEMENTS}
    (kind,) = queries.random.choices(list(kinds), list(kinds.values()))
    question = kind(queries) if callable(kind) else sessions.twins(kind, [Step(getattr(queries, kind)())])
    common = settings(queries)
    for side in question.sides:
        used = {step.session for step in side.steps}
        side.steps[:0] = [Step(step.sql, session) for session in sorted(used) for step in common]
    return question


class Report:
    def __init__(self):
        self.asked = collections.Counter()
        self.calling = collections.Counter()
        self.batched = collections.Counter()
        self.refused = collections.Counter()
        self.undecided = collections.Counter()
        self.invalid = []
        self.failed = collections.defaultdict(list)

    def note_failure(self, seed, number, question, outcomes):
        self.failed[question.kind].append(number)
        if len(self.failed[question.kind]) > PRINTED:
            return
        print(f"\n==> question {number} of seed {seed} ({question.kind}) has two answers")
        for side in question.sides:
            print(side)
        print(*describe(question, outcomes), sep="\n", flush=True)

    def summary(self):
        for kind in sorted(self.asked):
            words = [(self.asked, "asked"), (self.batched, "batched"), (self.refused, "with errors"), (self.undecided, "undecided")]
            counts = ", ".join(f"{counter[kind]} {word}" for counter, word in words)
            failed = self.failed[kind]
            print(f"{kind}: {counts}" + (f", {len(failed)} FAILED: {' '.join(map(str, failed))}" if failed else ""))

    def never_batched(self):
        return [kind for kind in self.asked if self.calling[kind] >= ENOUGH and not self.batched[kind]]


def describe(question, outcomes):
    """The first step whose outcomes differ, and how."""
    left, right = question.sides
    for expected, found, one, other in zip(*outcomes, left.steps, right.steps):
        if expected.agrees(found):
            continue
        yield f"-- differs: {other.sql}"
        if expected.word == found.word == "rows":
            only = [
                list((collections.Counter(first.value) - collections.Counter(second.value)).elements())
                for first, second in ((expected, found), (found, expected))
            ]
            yield f"-- only {left.name} ({len(expected.value)} rows): {only[0][:6]}"
            yield f"-- only {right.name} ({len(found.value)} rows): {only[1][:6]}"
            if not only[0] and not only[1]:
                yield f"-- in another order: {expected.value[:6]} and {found.value[:6]}"
        else:
            yield f"-- {left.name}: {expected}"
            yield f"-- {right.name}: {found}"
        return


def ask(server, report, seed, number):
    question = make_question(seed, number)
    report.asked[question.kind] += 1
    report.calling[question.kind] += question.is_batched
    expected, was_batched = server.run(question.sides[0], looks_at_plan=question.is_logic)
    found, is_batched = server.run(question.sides[1], looks_at_plan=True)
    report.batched[question.kind] += was_batched or is_batched
    outcomes = expected + found if question.is_logic else expected
    if any(outcome.code.startswith("42") and outcome.code != NOT_ALLOWED for outcome in outcomes):
        report.invalid.append(number)
        return
    if any(outcome.code == TIMED_OUT for outcome in outcomes):
        report.undecided[question.kind] += 1
        return
    report.refused[question.kind] += any(outcome.word == "error" for outcome in expected)
    if not all(one.agrees(other) for one, other in zip(expected, found)):
        report.note_failure(seed, number, question, (expected, found))


def main():
    count, seed, first = (int(argument) for argument in [*sys.argv[1:], *["2000", "1", "0"][len(sys.argv) - 1 :]])
    server, report, start = Server(), Report(), time.monotonic()
    set_up(server.session(1))
    sets.set_up(server.session(1))
    table_twins.set_up(server.session(1))
    slowest = (0, first)
    print(f"Every session has {' '.join(f'{name}={value}' for name, value in OPTIONS.items())}")
    for number in range(first, first + count):
        began = time.monotonic()
        ask(server, report, seed, number)
        slowest = max(slowest, (time.monotonic() - began, number))
    print()
    report.summary()
    failures = sum(map(len, report.failed.values()))
    took = time.monotonic() - start
    print(f"{count} questions of seed {seed} in {took:.0f} s, {sum(report.batched.values())} with batches, {failures} with two answers")
    print(f"the slowest was {slowest[1]}, with {slowest[0]:.1f} s")
    if report.invalid:
        print(f"questions that PostgreSQL did not understand: {' '.join(map(str, report.invalid))}")
    if report.never_batched():
        sys.exit(f"no question was batched of: {', '.join(report.never_batched())}")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
