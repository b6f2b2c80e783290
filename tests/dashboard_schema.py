"""Checks a dashboard against the types of Grafana's own schema, as its library for Python has them (grafana-foundation-sdk):
dashboard_schema.py FILE. Every value must have the schema's type, and every key a place in it."""

import enum
import json
import sys
import types
import typing

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard


def fits(value, hint):
    """What is wrong with a value, as a path and a reason; empty if nothing is."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or hint is object:
        return ""
    if origin in (typing.Union, types.UnionType):
        found = [fits(value, argument) for argument in arguments]
        return "" if "" in found else found[0]
    if origin is typing.Literal:
        return "" if value in arguments else f": {value!r} is none of {arguments}"
    if origin is list:
        if not isinstance(value, list):
            return f": {value!r} is no list"
        return next((f"[{i}]{wrong}" for i, each in enumerate(value) if (wrong := fits(each, arguments[0]))), "")
    if origin is dict:
        if not isinstance(value, dict):
            return f": {value!r} is no object"
        return next((f".{key}{wrong}" for key, each in value.items() if (wrong := fits(each, arguments[1]))), "")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return ""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "" if value in list(hint) else f": {value!r} is none of {[each.value for each in hint]}"
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        return f": {value!r} is not of type {hint.__name__}"
    return fields_fit(value)


def fields_fit(value):
    """The same of what an object of the library holds."""
    if not type(value).__module__.startswith("grafana_foundation_sdk."):
        return ""
    hints = typing.get_type_hints(type(value))
    for name, hint in hints.items():
        if wrong := fits(getattr(value, name, None), hint):
            return f".{name}{wrong}"
    return ""


def lost(given, kept, path=""):
    """The keys that the schema does not have."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for i, (value, other) in enumerate(zip(given, kept)):
            yield from lost(value, other, f"{path}[{i}]")
    elif given != kept:
        yield path


def check(given):
    register_default_plugins()
    read = dashboard.Dashboard.from_json(given)
    kept = json.loads(JSONEncoder().encode(read))
    return [*lost(given, kept), *filter(None, [fields_fit(read)])]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    # The check itself is checked: these are faults.
    for path, value in (
        (("schemaVersion",), "39"),
        (("pannels",), []),
        (("panels", 0, "gridPos", "x"), "0"),
        (("panels", 0, "targets", 0, "refid"), "A"),
        (("panels", 0, "fieldConfig", "defaults", "unit"), 7),
        (("templating", "list", 0, "type"), "data source"),
    ):
        broken = json.loads(text)
        place = broken
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert check(broken), f"{path} is not found"
    faults = check(json.loads(text))
    for fault in faults:
        print(f"{sys.argv[1]}: {fault}", file=sys.stderr)
    sys.exit(bool(faults))
