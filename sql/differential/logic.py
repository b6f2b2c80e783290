"""Questions that need no second implementation: two ways to ask the same of container functions."""

from script import Question, Side, Step
from twins import kept_form, with_form


def partitions(queries):
    """Ternary logic partitioning: the rows for which a condition is true, false and NULL are all rows."""
    queries.has_initplans = queries.chance(0.4)
    source, tables = queries.source()
    columns = f"{queries.ids(tables)}, {', '.join(queries.columns(tables, 2))}"
    condition = queries.condition(tables, 2)
    base = f"SELECT {columns} FROM {source}"
    fixed = queries.condition(tables, 1) if queries.chance(0.3) else None
    whole = base + (f" WHERE {fixed}" if fixed else "")
    parts = (condition, f"NOT ({condition})", f"({condition}) IS NULL")
    parts = [f"({part})" + (f" AND {fixed}" if fixed else "") for part in parts]
    if queries.chance(0.3):
        number = queries.number(tables, 1)
        whole = f"SELECT count(*), sum({number}), max({number}) FROM {source}" + (f" WHERE {fixed}" if fixed else "")
        inner = " UNION ALL ".join(f"SELECT {number} AS n FROM {source} WHERE {part}" for part in parts)
        joined = f"SELECT count(*), sum(n), max(n) FROM ({inner}) s"
    else:
        joined = " UNION ALL ".join(f"{base} WHERE {part}" for part in parts)
    return Question("partitions", _sides("every row", whole, "three parts", joined), True)


def counts(queries):
    """NoREC: as many rows pass a filter as there are rows of which the filter, as a column, is true."""
    queries.has_initplans = queries.chance(0.4)
    source, tables = queries.source()
    condition = queries.condition(tables, 2)
    filtered = f"SELECT count(*) FROM {source} WHERE {condition}"
    projected = f"SELECT count(*) FILTER (WHERE p) FROM (SELECT ({condition}) AS p FROM {source} OFFSET 0) s"
    return Question("counts", _sides("as a filter", filtered, "as a column", projected), True)


def having_partitions(queries):
    """The same for groups: those for which a condition after grouping is true, false and NULL are all groups."""
    source, tables = queries.source()
    group = queries.one_of(f"{tables[0]}.b", f"%inc({tables[0]}.b)", f"%even({tables[0]}.a)")
    base = f"SELECT {group}, {queries.aggregate(tables)} FROM {source}{queries.where(tables, 0.3)}"
    base += queries.one_of(" GROUP BY 1", " GROUP BY ROLLUP (1)")
    condition = queries.one_of(
        f"%inc(max({tables[0]}.a)) > {queries.integer(0, 20)}",
        f"%even(sum({queries.number(tables, 1)})::bigint)",
        f"max(%inc({tables[0]}.b)) < 5",
    )
    parts = " UNION ALL ".join(f"{base} HAVING {part}" for part in (condition, f"NOT ({condition})", f"({condition}) IS NULL"))
    return Question("having_partitions", _sides("every group", base, "three parts", parts), True)


def batching(queries):
    """The same query with batches and without."""
    kind = queries.one_of(
        "plain", "initplans", "grouping_sets", "empty_aggregates", "window_conditions", "lateral_subselects", "composites",
        "subplans_in_aggregates", "set_operations",
    )  # fmt: skip
    query = getattr(queries, kind)()
    row_by_row, batched = _sides("row by row", query, "batched", query)
    row_by_row.steps.insert(0, Step("SET transship.batching = off"))
    batched.steps.insert(0, Step("SET transship.batching = on"))
    return Question("batching", (row_by_row, batched), True)


def fusion(queries):
    """The same query with calls in arguments of calls fused, and arguments shared, and not."""
    kind = queries.one_of("plain", "plain", "common", "common", "initplans", "grouping_sets", "window_conditions", "lateral_subselects", "composites")
    query = getattr(queries, kind)()
    apart, fused = _sides("not fused", query, "fused", query)
    apart.steps.insert(0, Step("SET transship.fusion = off"))
    fused.steps.insert(0, Step("SET transship.fusion = on"))
    return Question("fusion", (apart, fused), True)


def keeping(queries):
    """The same query, asked twice, with results kept and not."""
    kind = queries.one_of("plain", "plain", "initplans", "grouping_sets", "window_conditions", "lateral_subselects", "composites", "set_operations")
    query = getattr(queries, kind)()
    queries.settings["transship.cache"] = queries.one_of("always", "always", "auto")
    called, kept = _sides("called", query, "kept", kept_form(query))
    called.steps *= 2
    kept.steps *= 2
    return Question("keeping", (called, kept), True)


def _sides(left_name, left, right_name, right):
    return tuple(Side(name, [Step(with_form(query, "c_"))]) for name, query in ((left_name, left), (right_name, right)))
