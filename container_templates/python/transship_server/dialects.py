"""Requests of other engines: Snowflake, SingleStore, Redshift, BigQuery, and clients of MLflow and of functions on Azure call
the same functions, each in its own JSON envelope (docs/dialects.md). RisingWave's clients are served by flight.py.

The function is the one that the request names (a header of Snowflake and SingleStore, a member of Redshift), or the last part
of the path, or the only one.
"""

import base64

import pyarrow as pa

from . import exact_json, json_values, types
from .errors import CallError

_MLFLOW_INPUTS = ("dataframe_split", "dataframe_records", "inputs", "instances")
_NAME_HEADERS = ("sf-external-function-name", "s2-ef-name")
# Engines that send and take JSON as it is, not as a string that holds it.
_WITH_JSON = ("snowflake", "bigquery")


def answer(functions, path, headers, body):
    """Status and JSON value of the answer, or None if the body is no dialect's."""
    dialect = _recognize(headers, body)
    if dialect is None:
        return None
    try:
        function = _find(functions, path, headers, body)
        if dialect == "azure-ml" and _are_numbered(function, body["data"]):
            # Gateways drop headers, and callers by hand do not write them.
            dialect = "snowflake"
        results = _call(function, dialect, _rows(dialect, function, body))
    except CallError as error:
        return _failure(dialect, error)
    if dialect in ("snowflake", "singlestore"):
        # SingleStore's numbers are any integers.
        return 200, {"data": [[row[0], value] for row, value in zip(body["data"], results)]}
    return 200, _envelope(dialect, results)


def _recognize(headers, body):
    if isinstance(body, list):
        return "array"
    if not isinstance(body, dict):
        return None
    if "data" in body and "columns" not in body:
        if any(name.startswith("sf-") for name in headers):
            return "snowflake"
        return "singlestore" if any(name.startswith("s2-ef-") for name in headers) else "azure-ml"
    if "arguments" in body and "external_function" in body:
        return "redshift"
    if "calls" in body:
        return "bigquery"
    if any(member in body for member in _MLFLOW_INPUTS):
        return "mlflow"
    return None


def _are_numbered(function, rows):
    """Whether each row has its number before its arguments."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        return False
    numbers = range(len(rows))
    width = len(function.arguments) + 1
    return all(len(row) == width and type(row[0]) is int and row[0] == number for number, row in zip(numbers, rows))


def _find(functions, path, headers, body):
    last = path.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    named = [headers.get(name) for name in _NAME_HEADERS]
    if isinstance(body, dict):
        # Redshift writes schema.function.
        named.append(str(body.get("external_function") or "").rsplit(".", 1)[-1])
    for name in [*filter(None, named), last]:
        # Snowflake may write "DATABASE"."SCHEMA"."NAME"; names without quotes are in upper case there.
        for known in (name, name.rsplit(".", 1)[-1].strip('"')):
            if known in functions:
                return functions[known]
            alike = [key for key in functions if key.lower() == known.lower()]
            if len(alike) == 1:
                return functions[alike[0]]
    if len(functions) != 1 or any(named):
        raise CallError("function_not_found", f'there is no function "{next(filter(None, named), last)}"')
    return next(iter(functions.values()))


def _rows(dialect, function, body):
    """The rows of a request, without their numbers."""
    names = [name for name, _ in function.arguments]
    try:
        if dialect == "array":
            rows = body
        elif dialect in ("snowflake", "singlestore"):
            rows = [row[1:] for row in body["data"]]
        elif dialect == "azure-ml":
            rows = body["data"]
        elif dialect == "redshift":
            # A record may be NULL as a whole, or a value where there is one argument.
            rows = [row if isinstance(row, list) else [row] * len(names) if row is None else [row] for row in body["arguments"]]
        elif dialect == "bigquery":
            rows = body["calls"]
        elif "dataframe_split" in body:
            split = body["dataframe_split"]
            order = [split["columns"].index(name) for name in names]
            rows = [[row[place] for place in order] for row in split["data"]]
        elif "dataframe_records" in body:
            rows = [[record[name] for name in names] for record in body["dataframe_records"]]
        elif isinstance(inputs := body.get("inputs", body.get("instances")), dict):
            rows = list(zip(*(inputs[name] for name in names)))
        else:
            rows = [row if isinstance(row, list) else [row[name] for name in names] if isinstance(row, dict) else [row] for row in inputs]
        rows = [list(row) for row in rows]
        if any(len(row) != len(names) for row in rows):
            raise ValueError(f"{function.name} takes {len(names)} arguments")
        return rows
    except (KeyError, ValueError, TypeError, IndexError) as cause:
        raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None


def _call(function, dialect, rows):
    if function.kind != "scalar":
        raise CallError("protocol_violation", f"{function.name} is a {function.kind} function")
    columns = []
    for position, (_, entry) in enumerate(function.arguments):
        try:
            columns.append(json_values.decode(entry, [_incoming(dialect, entry, row[position]) for row in rows]))
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as cause:
            raise CallError("protocol_violation", f"column {position + 1} is not of type {entry.name}: {cause}") from None
    if columns:
        batch = pa.RecordBatch.from_arrays(columns, schema=function.argument_schema)
    else:
        batch = pa.RecordBatch.from_arrays([pa.nulls(len(rows))], ["x"]).select([])
    column = function.call(batch)
    return [_outgoing(dialect, function.result, value) for value in json_values.encode(function.result, column)]


def _incoming(dialect, entry, value):
    """An engine's value in this protocol's JSON form."""
    if value is None:
        return None
    if isinstance(entry, types.ArrayType):
        if isinstance(value, list):
            return [_incoming(dialect, entry.element, item) for item in value]
        return value
    if isinstance(entry, types.CompositeType):
        if isinstance(value, dict):
            return {name: _incoming(dialect, part, value.get(name)) for name, part in entry.attributes}
        return value
    if entry.name == "json" and (dialect in _WITH_JSON or not isinstance(value, str)):
        return exact_json.dumps(value)
    if entry.name == "bytea" and dialect == "snowflake":
        return base64.b64encode(bytes.fromhex(value)).decode()
    if entry.name == "bool" and not isinstance(value, bool) and value in (0, 1):
        # SingleStore's BOOL is a TINYINT.
        return bool(value)
    if entry.name in ("timestamp", "timestamptz") and isinstance(value, str):
        return value.replace(" ", "T", 1)
    return value


def _outgoing(dialect, entry, value):
    if value is None:
        return None
    if isinstance(entry, types.ArrayType):
        return [_outgoing(dialect, entry.element, item) for item in value]
    if isinstance(entry, types.CompositeType):
        return {name: _outgoing(dialect, part, value[name]) for name, part in entry.attributes}
    if entry.name == "json" and dialect in _WITH_JSON:
        return exact_json.loads(value)
    if entry.name == "bytea" and dialect == "snowflake":
        return base64.b64decode(value).hex().upper()
    # Only BigQuery and this protocol write large integers as strings.
    if entry.name == "int8" and isinstance(value, str) and dialect != "bigquery":
        return int(value)
    return value


def _envelope(dialect, results):
    if dialect == "redshift":
        return {"success": True, "num_records": len(results), "results": results}
    if dialect == "bigquery":
        return {"replies": results}
    if dialect == "mlflow":
        return {"predictions": results}
    return results


def _failure(dialect, error):
    status = {"function_not_found": 404, "protocol_violation": 400}.get(error.kind, 500)
    if dialect == "redshift":
        # Redshift reads failures only from answers.
        return 200, {"success": False, "num_records": 0, "error_msg": error.message}
    if dialect == "bigquery":
        # BigQuery asks again after status 500.
        return 400, {"errorMessage": error.message[:1000]}
    if dialect == "mlflow":
        return status, {"error_code": "BAD_REQUEST", "message": error.message, "stack_trace": error.trace or ""}
    return status, {"error": error.message}
