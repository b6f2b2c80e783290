"""Random queries, by what they are about. Each method below is a kind of query: SQL in which calls are written %name(...)."""

from expressions import Expressions


class Queries(Expressions):
    def source(self):
        """A FROM clause and the names in it."""
        d = self.one_of("d1", "d1", "d2", "d3")
        return self.one_of(
            lambda: (f"{d} x", ["x"]),
            lambda: (f"{d} x", ["x"]),
            lambda: (f"d1 x JOIN d2 y ON x.a = y.a AND {self.condition(['x', 'y'], 1)}", ["x", "y"]),
            lambda: ("d3 x JOIN d2 y ON %inc(x.b) = y.b", ["x", "y"]),
            lambda: (f"d1 x LEFT JOIN d2 y ON x.a = y.a AND {self.condition(['x', 'y'], 1)}", ["x", "y"]),
            lambda: ("d2 x FULL JOIN d3 y ON x.a = y.a", ["x", "y"]),
            lambda: (f"(SELECT id, {self.number(['z'], 2)} AS a, b, t FROM d1 z WHERE {self.condition(['z'], 1)}) x", ["x"]),
            lambda: ("(SELECT id, a, %inc(b) AS b, t FROM d1 UNION ALL SELECT id, %inc(a), b, %up(t) FROM d3) x", ["x"]),
            lambda: (f"d2 x, LATERAL (SELECT z.id, {self.number(['x', 'z'], 2)} AS a, z.b, z.t FROM d2 z WHERE z.b = x.b) y", ["x", "y"]),
            self.source_with_sets,
            self.source_with_sets,
            self.gated_source,
            lambda: ("(SELECT DISTINCT ON (%even(a), b) id, a, b, t FROM d1 ORDER BY %even(a), b, id) x", ["x"]),
        )()

    def gated_source(self):
        """A join whose inner side has a filter that is asked once; a merge join goes back on it."""
        if self.chance(0.5):
            self.settings.update(enable_hashjoin="off", enable_nestloop="off", enable_sort="off", max_parallel_workers_per_gather="0")
        gate = self.one_of("%seven() > 1", "(SELECT true)", "(SELECT max(s.id) FROM d2 s) > 5", "%pick(NULL, 3) = 3")
        inner = f"(SELECT id, a, b, t FROM d1 z WHERE {gate} AND {self.condition(['z'], 1)})"
        return f"d1 x {self.one_of('LEFT JOIN', 'LEFT JOIN', 'JOIN')} {inner} y ON x.{self.one_of('a', 'id')} = y.id", ["x", "y"]

    def source_with_sets(self):
        """A FROM clause with a function in it, or with one that returns sets in a target list."""
        return self.one_of(
            lambda: (f"d2 x, %both(x.a, {self.number(['x'], 1)}) f", ["x", "f"]),
            lambda: (f"d2 x, %many({self.number(['x'], 1)}) f", ["x", "f"]),
            lambda: (f"d1 x LEFT JOIN LATERAL %many({self.number(['x'], 1)}) f ON {self.one_of('true', 'true', 'f.b = 1')}", ["x", "f"]),
            lambda: ("d2 x CROSS JOIN LATERAL %many(x.a) f JOIN d2 y ON y.id = f.id + x.b", ["x", "f", "y"]),
            lambda: (f"(SELECT id, %upto({self.number(['z'], 1)}) AS a, {self.number(['z'], 1)} AS b, t FROM d2 z) x", ["x"]),
            lambda: (f"(SELECT id, (%many({self.number(['z'], 1)})).a, b, t FROM d2 z WHERE {self.condition(['z'], 1)}) x", ["x"]),
        )()  # fmt: skip

    def where(self, tables, probability=0.6):
        return f" WHERE {self.condition(tables, 2)}" if self.chance(probability) else ""

    def ids(self, tables):
        return ", ".join(f"{table}.id" for table in tables)

    def total_order(self, tables):
        """Columns by which no two rows are equal that differ in a column."""
        return ", ".join(f"{table}.{column}" for table in tables for column in ("id", "a", "b"))

    def columns(self, tables, depth=3):
        return [self.number(tables, self.integer(1, depth)) for _ in range(self.integer(1, 3))]

    def plain(self):
        """Joins, filters, groups, windows, CTEs, with and without LIMIT."""
        limit = ""
        self.may_fail = self.chance(0.5)
        if self.chance(0.25):
            self.may_fail = False
            limit = f" LIMIT {self.integer(0, 30)}"
        source, tables = self.source()
        where = self.where(tables)
        shape, width = self.random.random(), len(tables)
        if shape < 0.3:
            group = self.one_of(f"{tables[0]}.b", f"%inc({tables[0]}.b)", f"%even({tables[0]}.a)")
            having = f" HAVING %inc(count(*)) > {self.integer(0, 20)}" if self.chance(0.4) else ""
            more = f"%inc({self.one_of('count(*)', f'max({tables[0]}.a)')})"
            return f"SELECT {group} AS g, {self.aggregate(tables)}, {more} FROM {source}{where} GROUP BY 1{having} ORDER BY 1{limit}"
        ids = self.ids(tables)
        if shape < 0.4:
            partition = f"PARTITION BY {tables[0]}.b ORDER BY {ids}"
            return f"SELECT {ids}, sum({self.number(tables, 2)}) OVER ({partition}) FROM {source}{where} ORDER BY {ids}, {width + 1}{limit}"
        columns = self.columns(tables)
        if shape < 0.5:
            inner = f"SELECT {tables[0]}.id AS id, {self.number(tables, 2)} AS a FROM {source}{where}"
            return f"WITH w AS MATERIALIZED ({inner}) SELECT id, %inc(a), a FROM w ORDER BY id, a{limit}"
        order = f" ORDER BY {ids}" if self.chance(0.5) else f" ORDER BY {self.number(tables, 1)}"
        if limit:
            # Every column, so that rows with equal ids do not make the answer a matter of chance.
            order = " ORDER BY " + ", ".join(str(i + 1) for i in range(width + len(columns)))
        return f"SELECT {ids}, {', '.join(columns)} FROM {source}{where}{order}{limit}"

    def common(self):
        """Several calls with arguments in common, for different rows."""
        self.may_fail = self.chance(0.3)
        source, tables = self.source()
        number = self.number(tables, self.integer(0, 2))
        text = self.one_of(self.text(tables, 0), self.text(tables, 1), f"lower({self.text(tables, 0)})", f"md5({number}::text)")
        calls = [
            f"%up({text})",
            f"%size({text})",
            f"%tag({text}, {number})",
            f"%tag({text}, {self.number(tables, 1)})",
            f"%tag(%up({text}), %size({text}))",
            f"%add({number}, {self.number(tables, 1)})",
            f"%inc({number})",
            f"%label({number})",
        ]
        calls = [self.one_of(call, call, f"CASE WHEN {self.condition(tables, 1)} THEN {call} END") for call in calls]
        columns = ", ".join(self.random.sample(calls, self.integer(2, 5)))
        where = self.one_of("", f" WHERE {self.condition(tables, 1)}", f" WHERE %size({text}) > 2 OR %up({text}) < 'T5'")
        return f"SELECT {self.ids(tables)}, {columns} FROM {source}{where}"

    def initplans(self):
        """Uncorrelated subqueries beside calls, mostly without ORDER BY, so that they belong to the node that is replaced."""
        self.has_initplans = True
        source, tables = self.source_with_sets() if self.chance(0.6) else self.source()
        ids = self.ids(tables)
        where = f" WHERE {self.initplan_condition(tables)}"
        if self.chance(0.3):
            where += f" AND {self.condition(tables, 1)}"
        order = f" ORDER BY {self.total_order(tables)}" if self.chance(0.15) else ""
        return self.one_of(
            lambda: f"SELECT {ids}, {', '.join(self.columns(tables, 2))} FROM {source}{where}{order}",
            lambda: f"SELECT {ids}, {self.initplan()}, {self.number(tables, 1)} FROM {source}{order}",
            lambda: f"SELECT {ids}, {self.columns(tables, 1)[0]} FROM {source}{where}{order}",
            lambda: f"SELECT x.id, %upto({self.one_of('x.a', self.number(['x'], 1))}), {self.one_of('x.b', self.initplan())} "
                    f"FROM d2 x WHERE {self.initplan_condition(['x'])}",
            lambda: f"SELECT {self.aggregate(tables)}, {self.initplan()} FROM {source}{where}",
        )()  # fmt: skip

    def grouping_sets(self):
        """GROUP BY with several groupings; calls over what is grouped stand in aggregates and beside them."""
        source, tables = self.source()
        table = tables[0]
        choices = [f"{table}.b", f"{table}.a", f"%inc({table}.b)", f"%even({table}.a)", f"({table}.b + 1)"]
        keys = self.random.sample(choices, self.integer(1, 3))
        every = ", ".join(keys)
        grouping = self.one_of(
            f"ROLLUP ({every})",
            f"CUBE ({every})",
            f"GROUPING SETS (({every}), ())",
            f"GROUPING SETS ({', '.join(f'({key})' for key in keys)}, ())",
            f"{keys[0]}, ROLLUP ({every})",
        )
        number = self.one_of(*[key for key in keys if "even" not in key], f"{table}.b")
        # What stands beside the aggregates may use nothing but keys.
        beside = number if number in keys else "grouping(" + keys[0] + ")"
        call = self.one_of(f"%inc({number})", f"%pick({number}, 5)", f"%add({number}, {number})")
        repeated = call.replace(number, beside)
        columns = [*keys, repeated, self.aggregate(tables, call)]
        if self.chance(0.5):
            columns.append(f"grouping({every})")
        if self.chance(0.5):
            columns.append(self.aggregate(tables))
        if self.chance(0.3):
            columns.append(f"%label({beside})")
        having = f" HAVING %inc(count(*)) > {self.integer(0, 20)}" if self.chance(0.3) else ""
        return f"SELECT {', '.join(columns)} FROM {source}{self.where(tables, 0.4)} GROUP BY {grouping}{having}"

    def empty_aggregates(self):
        """Aggregates over no row at all, beside calls that aggregates make as well."""
        source, tables = self.one_of(lambda: ("d1 x", ["x"]), lambda: ("d3 x", ["x"]), self.source)()
        table = tables[0]
        never = self.one_of(f"{table}.id < 0", f"{table}.id < 0 AND {self.condition(tables, 1)}", "false", f"{table}.a > 1000")
        where = self.one_of(f" WHERE {never}", f" WHERE {never}", f" WHERE {never}", self.where(tables))
        number = self.one_of("%seven()", "%pick(NULL, 3)", "%pick(%seven(), 2)", "%add(%seven(), 1)", "%inc(%seven())", "%echo(4)")
        text = self.one_of("%up('a')", "%label(%seven())", "%up(%up('b'))")
        columns = self.random.sample(
            [number, f"sum({number})", f"max({number})", text, f"string_agg({text}, ',')", f"coalesce(sum({number}), {number})",
             f"count({text})", f"min({text})", "count(*)", f"%inc(count({number}))"], self.integer(2, 5),
        )  # fmt: skip
        having = f" HAVING {number} > 0" if self.chance(0.2) else ""
        return f"SELECT {', '.join([number, f'sum({number})', *columns])} FROM {source}{where}{having}"

    def window_conditions(self):
        """Conditions on window functions over subqueries with calls, which PostgreSQL moves into the window."""
        source, tables = self.source()
        order = self.one_of(
            f"ORDER BY {self.total_order(tables)}",
            f"ORDER BY {tables[0]}.id DESC, {self.total_order(tables)}",
            f"PARTITION BY {tables[0]}.b ORDER BY {self.total_order(tables)}",
            f"PARTITION BY %even({tables[0]}.a) ORDER BY {self.total_order(tables)}",
        )
        rank = self.one_of("row_number()", "rank()", "dense_rank()", "count(*)", f"count({self.number(tables, 1)})", "ntile(4)")
        columns = self.columns(tables, 2)
        names = [f"c{i}" for i in range(len(columns))]
        if self.chance(0.3):
            frame = " ROWS BETWEEN " + self.one_of("2 PRECEDING AND CURRENT ROW", "3 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW")
            frame = self.one_of("", frame)
            window = self.one_of("sum", "max", "first_value", "last_value", "count")
            columns.append(f"{window}({self.number(tables, 1)}) OVER ({order}{frame})")
            names.append("w")
        parts = [f"{column} AS {name}" for column, name in zip(columns, names)]
        parts.insert(self.integer(0, len(parts)), f"{rank} OVER ({order}) AS rn")
        inner = f"SELECT {', '.join(parts)} FROM {source}{self.where(tables, 0.3)}"
        k = self.integer(0, 12)
        condition = self.one_of(
            f"rn <= {k}", f"rn < {k}", "rn = 1", f"{k} >= rn", f"rn <= {k} AND %even(c0)", f"rn > {k}", f"%inc(rn) <= {k}",
            f"rn <= %pick({k}, 1)",
        )  # fmt: skip
        outer = self.one_of("*", f"rn, {', '.join(names)}", "%inc(c0), rn", f"{names[-1]}")
        return f"SELECT {outer} FROM ({inner}) s WHERE {condition}"

    def window_arguments(self):
        """Window functions that look at some rows only, over calls that fail for others."""
        table = self.one_of("d1", "d2", "d3")
        call = self.one_of("%fail(x.a)", f"%fail(x.id - {self.integer(1, 5)})", "%fail(x.id + 5)", f"%fail({self.number(['x'], 1)})", "%inc(x.a)")
        function = self.one_of(
            f"first_value({call})", f"last_value({call})", f"nth_value({call}, 3)", f"lag({call})", f"lead({call}, 2)",
            f"lag(x.a, 1, {call})", f"sum(x.a) FILTER (WHERE {call} > 2)", f"sum({call}) FILTER (WHERE x.a <> 7)", f"max({call})",
        )  # fmt: skip
        frame = self.one_of(
            "",
            " ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
            " ROWS 1 PRECEDING EXCLUDE CURRENT ROW",
        )
        window = f"{self.one_of('', 'PARTITION BY x.b ')}ORDER BY x.id{self.one_of('', ' DESC')}{frame}"
        where = self.one_of("", f" WHERE x.id <> {self.integer(1, 12)}", " WHERE %even(x.id)")
        return f"SELECT x.id, {function} OVER ({window}), {self.number(['x'], 1)} FROM {table} x{where}"

    def lateral_subselects(self):
        """LEFT JOIN LATERAL of subselects, whose constants and COALESCE are NULL where nothing was found."""
        d = self.one_of("d1", "d2", "d3")
        argument = self.number(["x"], self.integer(0, 1))
        inner, columns = self.one_of(
            lambda: (f"%many({argument}) m", ["m.id", "m.a", "m.b"]),
            lambda: (f"%many({argument}) m", ["m.id", "m.a", "m.b"]),
            lambda: (f"%many({argument}) m WHERE {self.condition(['m'], 0)}", ["m.id", "m.a", "m.b"]),
            lambda: (f"%both({argument}, x.b) m", ["m.id", "m.a", "m.b"]),
            lambda: (f"%upto({argument}) m", ["m", "m", "m"]),
            lambda: (f"d2 m WHERE m.id = {argument}", ["m.id", "%inc(m.a)", "m.b"]),
            lambda: ("(SELECT 1) m", [argument, "%inc(x.a)", "x.b"]),
        )()
        items = {
            "found": self.one_of("true", "'yes'", "x.id IS NOT NULL"),
            "id": columns[0],
            "a": self.one_of(f"coalesce({columns[1]}, -1)", columns[1], f"%pick({columns[1]}, -1)", "5", "%seven()"),
            "b": self.one_of(columns[2], f"coalesce({columns[2]}, x.b)", "NULL::bigint", f"%inc({columns[2]})"),
        }
        subselect = f"SELECT {', '.join(f'{value} AS {name}' for name, value in items.items())} FROM {inner}"
        on = self.one_of("true", "true", "f.b = 1", f"f.id < {self.integer(1, 4)}", "%even(f.id)")
        outputs = ["x.id", "f.found", "f.id", "f.a", self.one_of("f.b", "coalesce(f.a, 0)", self.number(["x", "f"], 1), "f")]
        where = self.one_of("", "", " WHERE f.found IS NULL", " WHERE f.id IS NULL", f" WHERE {self.condition(['x', 'f'], 1)}")
        join = self.one_of("LEFT JOIN", "LEFT JOIN", "LEFT JOIN", "JOIN")
        return f"SELECT {', '.join(outputs)} FROM {d} x {join} LATERAL ({subselect}) f ON {on}{where}"

    def composites(self):
        """Whole rows, which a function may give as NULL, a join too, and which are not the same as rows of NULLs."""
        call = self.one_of(f"%maybe({self.number(['x'], self.integer(0, 1))})", "%maybe(x.a)", "%many(x.b)", "%both(x.a, x.b)")
        source = self.one_of(
            f"d2 x, {call} f",
            f"d2 x LEFT JOIN LATERAL {call} f ON {self.one_of('true', 'f.id > 1', 'f IS NOT NULL')}",
            f"d3 x LEFT JOIN LATERAL (SELECT m.* FROM {call} m) f ON true",
            f"d2 x LEFT JOIN (SELECT id, a, b FROM d1 WHERE %even(b)) f ON f.id = %inc(x.id)",
            f"(SELECT x.id, x.b, {call} AS f FROM d2 x) x",
        )
        row = "x.f" if source.startswith("(SELECT") else "f"
        choices = [
            f"{row} IS NULL", f"{row} IS NOT NULL", f"({row}).id", f"coalesce(({row}).id, 0)", f"{row} IS DISTINCT FROM NULL", f"({row}).b",
        ]  # fmt: skip
        if "d1" not in source and "m.*" not in source:
            choices += [f"%first({row})", f"coalesce({row}, ROW(1, 2, 3)::d_row)", f"%inc(%first({row}))", f"{row} = ROW(1, 2, 3)::d_row"]
        columns = ", ".join(self.random.sample(choices, 3))
        where = self.one_of("", "", f" WHERE {row} IS NULL", f" WHERE {row} IS NOT NULL", f" WHERE ({row}).id > 2")
        return self.one_of(
            f"SELECT x.id, {row}, {columns} FROM {source}{where}",
            f"SELECT count({row}), count(*), count(({row}).id) FROM {source}{where}",
            f"SELECT x.b, count({row}), max(%inc(({row}).id)), array_agg({row} ORDER BY x.id, ({row}).id) "
            f"FROM {source}{where} GROUP BY x.b",
            f"SELECT x.id, {columns} FROM {source}{where} ORDER BY x.id, 2, 3, 4",
        )

    def subplans_in_aggregates(self):
        """Subqueries, hashed or asked for each row, inside the arguments of aggregates, in queries that refer to rows around."""
        limit = self.integer(5, 30)
        table = self.one_of("d1", "d2", "d3")
        member = self.subplan_condition(["n"], "v.k")
        number = self.one_of(
            f"%inc(CASE WHEN {member} THEN 1 ELSE 0 END)",
            f"%pick(CASE WHEN {member} THEN n.a END, n.id)",
            f"CASE WHEN {member} THEN %inc(n.a) ELSE %pick(n.b, v.k) END",
            f"%add(n.a, (SELECT count(*) FROM d2 u WHERE {self.one_of('u.id <= v.k', 'u.b = n.b', '%inc(u.id) = n.id')}))",
            f"%pick((SELECT max({self.number(['u'], 1)}) FROM d2 u WHERE u.id <= v.k), n.a)",
            "%inc(n.a + v.k)",
        )
        aggregate = self.one_of(
            f"sum({number})", f"sum({number})", f"max({number})", f"string_agg(%label({number}), ',' ORDER BY n.id)",
            f"count(*) FILTER (WHERE {member})", f"sum(%inc(n.a)) FILTER (WHERE {member})",
        )  # fmt: skip
        more = self.one_of("", "", "", f" AND {self.subplan_condition(['n'], 'v.k')}", " AND %inc(n.id) > v.k")
        subquery = f"SELECT {aggregate} FROM {table} n WHERE n.id <= {limit}{more}"
        outer = self.one_of(
            "(VALUES (1::bigint), (2), (3)) v(k)",
            "(SELECT id AS k FROM d2 WHERE id < 6) v",
            "(SELECT %inc(id) AS k FROM d2 WHERE id < 6) v",
        )
        return self.one_of(
            lambda: f"SELECT v.k, ({subquery}) FROM {outer}",
            lambda: f"SELECT v.k, %inc(length(({subquery})::text)) FROM {outer}",
            lambda: f"SELECT v.k, w.* FROM {outer}, LATERAL ({subquery}) w",
            lambda: f"SELECT v.k FROM {outer} WHERE ({subquery})::text <> '3'",
        )()

    def recursion(self):
        """WITH RECURSIVE, whose working table is read by nodes that are asked again and again."""
        step = self.one_of("%inc(f.a)", "%add(f.a, 2)", "%pick(f.a, 1) + 1", "%echo(f.a) + 1")
        more, condition = self.one_of(
            ("", ""), (", d2 y", " AND y.id = f.id"), (", %many(f.a) m", ""), (" JOIN d2 y ON y.id = %inc(f.a)", ""),
        )  # fmt: skip
        return (
            f"WITH RECURSIVE f(id, a, b) AS (SELECT id, {self.number(['x'], 1)}, b FROM d2 x WHERE id <= {self.integer(1, 20)} "
            f"{self.one_of('UNION', 'UNION ALL')} "
            f"SELECT f.id, {step}, f.b FROM f{more} WHERE f.a BETWEEN -3 AND {self.integer(2, 5)}{condition}) "
            f"SELECT DISTINCT id, a, {self.number(['f'], 1)} FROM f WHERE {self.condition(['f'], 1)}"
        )

    def set_operations(self):
        """UNION, INTERSECT and EXCEPT, partitions and inherited rows."""
        def part():
            source, tables = self.source()
            return f"SELECT {tables[0]}.id, {self.number(tables, 2)} FROM {source}{self.where(tables)}"

        operation = self.one_of("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL")
        more = self.one_of("", f" UNION ALL {part()}")
        return f"SELECT id, %inc(a) FROM (({part()}) {operation} ({part()}){more}) u(id, a)"
