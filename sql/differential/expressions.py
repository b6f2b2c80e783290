"""Random expressions over the tables of twins.py. A call is written %name(...)."""

import random

# FROM items of these names have the columns id, a and b alone; every other has t as well, a text.
TEXTLESS = ("f", "m")


class Expressions:
    """Random numbers, texts, conditions and aggregates over the columns of FROM items.

    Each takes the items' names, of which the last are the inner ones, and how deep the expression may nest.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        # Where a batch may hold rows that are never asked for (LIMIT, EXISTS, windows, cursors), nothing may fail.
        self.may_fail = False
        # Names of a prepared statement's parameters, of bigint.
        self.parameters = []
        self.has_initplans = False
        self.is_in_subquery = False
        # Aggregates are those of sets.py.
        self.has_own_aggregates = False
        # Settings without which the query would not be what it is meant to be.
        self.settings = {}

    def one_of(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability):
        return self.random.random() < probability

    def integer(self, lowest, highest):
        return self.random.randint(lowest, highest)

    def leaf(self, tables):
        table = self.one_of(*tables)
        choices = [f"{table}.a", f"{table}.b", f"{table}.a", str(self.integer(-2, 12)), *self.parameters]
        return self.one_of(*choices)

    def number(self, tables, depth):
        """A bigint."""
        if depth <= 0:
            return self.leaf(tables)
        table = self.one_of(*tables)
        deeper = lambda: self.number(tables, depth - 1)  # noqa: E731
        call = [
            lambda: f"%inc({deeper()})",
            lambda: f"%add({deeper()}, {deeper()})",
            lambda: f"%pick({deeper()}, {deeper()})",
            lambda: f"(%both({deeper()}, {deeper()})).{self.one_of('id', 'a', 'b')}",
        ]
        # Where fewer rows may be asked for, VOLATILE calls are made one by one, in a subquery for each row around it.
        if not self.is_in_subquery:
            call.append(lambda: f"%echo({deeper()})")
        if self.may_fail:
            call.append(lambda: f"CASE WHEN {deeper()} <> 7 THEN %inc({deeper()}) ELSE %fail({deeper()}) END")
            call.append(lambda: f"CASE WHEN {table}.a <> 7 THEN %fail({table}.a) END")
        other = [
            lambda: f"({deeper()} {self.one_of('+', '-', '*')} {deeper()})",
            lambda: f"CASE WHEN {self.condition(tables, depth - 1)} THEN {deeper()} ELSE {deeper()} END",
            lambda: f"CASE WHEN {table}.b <> 0 THEN %inc({table}.a / {table}.b) END",
            lambda: f"CASE {deeper()} WHEN {deeper()} THEN {deeper()} WHEN 3 THEN {deeper()} END",
            lambda: f"coalesce({deeper()}, {deeper()})",
            lambda: f"nullif({deeper()}, {deeper()})",
            lambda: f"greatest({deeper()}, {deeper()})",
            lambda: f"length({self.text(tables, depth - 1)})",
            lambda: f"(SELECT max(s.b + {self.number([*tables, 's'], depth - 1)}) FROM d2 s WHERE s.b = {table}.b)",
        ]
        if not self.is_in_subquery:
            other.append(lambda: self.set_subquery(table))
        if self.has_initplans:
            other.append(self.initplan)
        return self.one_of(*call, *call, *other, lambda: self.leaf(tables))()

    def text(self, tables, depth):
        with_text = [f"{table}.t" for table in tables if table not in TEXTLESS]
        if depth <= 0:
            return self.one_of("'t5'", *with_text, *with_text)
        return self.one_of(
            lambda: f"%label({self.number(tables, depth - 1)})",
            lambda: f"%up({self.text(tables, depth - 1)})",
            lambda: f"coalesce({self.text(tables, depth - 1)}, {self.text(tables, 0)})",
            lambda: self.text(tables, 0),
        )()

    def initplan(self):
        """A number out of a subquery that refers to nothing around it."""
        number, condition = self.in_subquery()
        return self.one_of(
            f"(SELECT max(s.id) - {self.integer(0, 5)} FROM d2 s)",
            f"(SELECT max({number}) FROM d2 s)",
            f"(SELECT count(*) FROM d2 s WHERE {condition})",
            f"(SELECT min(s.a) FROM d3 s WHERE {condition})",
            f"(SELECT %pick({number}, 2) FROM d2 s WHERE s.id = {self.integer(0, 60)})",
            "(SELECT %seven())",
        )

    def initplan_condition(self, tables):
        """A condition that needs a subquery's result, of numbers, texts or truth values."""
        table = self.one_of(*tables)
        number, condition = self.in_subquery()
        choices = [
            f"{table}.id > (SELECT max(s.id) - {self.integer(1, 30)} FROM d2 s)",
            f"{self.number(tables, 1)} {self.one_of('<', '>', '=', '<>')} {self.initplan()}",
            f"EXISTS (SELECT FROM d2 s WHERE {condition})",
            f"{self.number(tables, 1)} = ANY (ARRAY(SELECT {number} FROM d2 s))",
            f"({table}.id < 20) = (SELECT bool_or({condition}) FROM d2 s)",
        ]
        if table not in TEXTLESS:
            choices.append(f"{table}.t > (SELECT min(%up(s.t)) FROM d2 s WHERE {condition})")
            choices.append(f"{table}.t > (SELECT min(s.t) FROM d2 s)")
        return self.one_of(*choices)

    def set_subquery(self, table):
        """A number out of a function that returns sets, asked again for each row around it."""
        number, condition = self.in_subquery()
        return self.one_of(
            f"(SELECT sum(m.id)::bigint FROM d2 s, %many(s.a) m WHERE s.id = {table}.id)",
            f"(SELECT m.id + m.b FROM d2 s, %many({number}) m WHERE s.b = {table}.b ORDER BY m.id, m.b LIMIT 1)",
            f"(SELECT count(m.id) FROM d2 s LEFT JOIN LATERAL %many(s.b) m ON {condition} WHERE s.id = {table}.id)::bigint",
            f"(SELECT max(m.id) FROM %many({table}.a) m WHERE m.b < {table}.b)",
            f"(SELECT max(u) FROM (SELECT %upto(s.a) AS u FROM d2 s WHERE s.b = {table}.b) s)",
        )

    def membership(self, tables):
        """IN and EXISTS, which become joins at the top of a WHERE clause."""
        table = self.one_of(*tables)
        number, condition = self.in_subquery()
        return self.one_of(
            f"{table}.id {self.one_of('', 'NOT ')}IN (SELECT {number} FROM d2 s)",
            f"{self.one_of('', 'NOT ')}EXISTS (SELECT FROM d2 s WHERE %inc(s.a) = {table}.a AND s.id < 12 AND {condition})",
            f"{self.one_of('', 'NOT ')}EXISTS (SELECT FROM d2 s, %many(s.a) m WHERE s.id = {table}.id AND m.id >= {self.integer(1, 4)})",
            f"EXISTS (SELECT FROM d2 s WHERE s.b = {table}.b AND {condition})",
        )

    def in_subquery(self):
        """A number and a condition over s, which hold no further subqueries of these kinds."""
        before = self.has_initplans, self.is_in_subquery
        self.has_initplans, self.is_in_subquery = False, True
        parts = self.number(["s"], 1), self.condition(["s"], 1)
        self.has_initplans, self.is_in_subquery = before
        return parts

    def subplan_condition(self, tables, outer):
        """IN of a subquery, which is hashed or asked again for each row of `outer`, a column of a query around."""
        number = lambda tables: self.number(tables, self.integer(0, 1))  # noqa: E731
        where = self.one_of(
            "",
            f" WHERE u.id <= {outer}",
            f" WHERE u.id <= {outer}",
            f" WHERE u.a > {outer} + {self.integer(0, 9)}",
            f" WHERE u.b = {number(tables)}",
            f" WHERE {self.condition(['u'], 1)}",
            f" WHERE %inc(u.id) < {outer}",
        )
        return f"{number(tables)} {self.one_of('', 'NOT ')}IN (SELECT {number(['u'])} FROM d2 u{where})"

    def condition(self, tables, depth):
        number = lambda: self.number(tables, depth)  # noqa: E731
        simple = [
            lambda: f"{number()} {self.one_of('<', '>', '=', '<>', '>=')} {number()}",
            lambda: f"%even({number()})",
            lambda: f"{number()} IS {self.one_of('', 'NOT ')}NULL",
            lambda: f"{number()} IN ({number()}, {number()}, 3)",
            lambda: f"{self.text(tables, depth)} {self.one_of('<', '>')} 'n2'",
        ]
        if depth <= 0:
            return self.one_of(*simple)()
        part = lambda: self.condition(tables, depth - 1)  # noqa: E731
        choices = [
            *simple,
            lambda: f"({part()} AND {part()})",
            lambda: f"({part()} OR {part()})",
            lambda: f"NOT ({part()})",
            lambda: f"EXISTS (SELECT 1 FROM d2 e WHERE e.a = {tables[0]}.a AND e.b < 3)",
        ]
        if not self.is_in_subquery:
            choices.append(lambda: self.membership(tables))
        if self.has_initplans:
            choices.append(lambda: self.initplan_condition(tables))
        return self.one_of(*choices)()

    def aggregate(self, tables, argument=None):
        """An aggregate, of `argument` if that is given."""
        number = argument or self.number(tables, 2)
        order = f"ORDER BY {number}, {', '.join(f'{table}.id, {table}.a, {table}.b' for table in tables)}"
        choices = [
            lambda: f"%total({number})",
            lambda: f"%total(DISTINCT {number})",
            lambda: f"%total({number}) FILTER (WHERE {self.condition(tables, 1)})",
            lambda: f"%gather({number} {order})",
            lambda: f"%gather({number} {order}) FILTER (WHERE {self.condition(tables, 1)})",
            lambda: f"%gather(DISTINCT {number})",
        ] if self.has_own_aggregates else [
            lambda: f"sum({number})",
            lambda: f"count({number})",
            lambda: f"min({number})",
            lambda: f"count(DISTINCT {number})",
            lambda: f"sum({number}) FILTER (WHERE {self.condition(tables, 1)})",
            lambda: f"string_agg(%label({number}), ',' ORDER BY {number}, {', '.join(f'{table}.id' for table in tables)})",
            lambda: f"array_agg({number} ORDER BY {', '.join(f'{table}.id, {table}.a, {table}.b' for table in tables)})",
        ]
        return self.one_of(*choices)()
