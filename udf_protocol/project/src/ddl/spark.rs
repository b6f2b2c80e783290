//! A Python module for Spark: an Arrow UDF per function, which sends its batches to a server by Flight.
//!
//! Spark has no statement for functions that run elsewhere; `pyspark.sql.functions.arrow_udf` (Spark 4.1) hands Python
//! workers Arrow arrays, which go into the exchange of `docs/protocol.md` §4 as they are.

use udf_types::Result;
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::types::Type;

use crate::manifest::Manifest;

/// Spark's type for numeric, as the inside of a Python f-string.
const NUMERIC: &str = "decimal({PRECISION}, {SCALE})";

/// What stands before the functions.
const PREAMBLE: &str = r#"import decimal
import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
from pyspark.sql.functions import arrow_udf

# Spark's type for numeric, which has no limits of its own. Results are rounded to the scale, and refused if they do not fit.
PRECISION, SCALE = 38, 18
_clients = {}


def _call(name, arrays, types, result, strict):
    """The results for a batch of arguments (docs/protocol.md, section 4)."""
    rows = len(arrays[0])
    columns = []
    for position, (array, wanted) in enumerate(zip(arrays, types), 1):
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        columns.append(_convert(array, wanted, f"argument {position} of container function {name!r}"))
    called = None
    if strict and any(column.null_count for column in columns):
        called = columns[0].is_valid()
        for column in columns[1:]:
            called = pc.and_(called, column.is_valid())
        columns = [column.filter(called) for column in columns]
    if called is not None and len(columns[0]) == 0:
        return pa.nulls(rows, result)
    answer = _exchange(name, columns, called)
    answer = _convert(answer, result, f"the result of container function {name!r}")
    if called is None:
        return answer
    numbers = iter(range(len(answer)))
    return answer.take(pa.array([next(numbers) if is_called else None for is_called in called.to_pylist()], pa.int64()))


def _exchange(name, columns, called):
    client = _clients.get(ENDPOINT)
    if client is None:
        client = _clients[ENDPOINT] = _connect()
    rows = len(columns[0])
    batch = pa.RecordBatch.from_arrays(columns, [f"arg{i + 1}" for i in range(len(columns))])
    error = None
    try:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name), _options())
        with writer:
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, b'{"batch": 0}')
            writer.done_writing()
            chunk = reader.read_chunk()
            error = json.loads(chunk.app_metadata.to_pybytes()).get("error") if chunk.app_metadata else None
    except (pa.ArrowException, OSError, StopIteration) as cause:
        # Of a call that failed, the status says less than the metadata.
        if not error:
            raise RuntimeError(f"container function {name!r} could not be called at {ENDPOINT}: {cause}") from cause
    if error:
        row, place = error.get("row"), ""
        if row is not None and row < rows:
            if called is not None:
                row = [number for number, is_called in enumerate(called.to_pylist()) if is_called][row]
            place = f", row {row} of a batch"
        raise RuntimeError(f"container function {name!r}{place}: {error['message']}\n{error.get('traceback', '')}".rstrip())
    answer = chunk.data.column(0)
    if len(answer) != rows:
        raise RuntimeError(f"container function {name!r} gave {len(answer)} results for {rows} rows")
    return answer


def _connect():
    options = {}
    if authorities := os.environ.get("TRANSSHIP_CA"):
        with open(authorities, "rb") as file:
            options["tls_root_certs"] = file.read()
    return flight.connect(ENDPOINT.replace("grpcs://", "grpc+tls://", 1), **options)


def _options():
    token = os.environ.get("TRANSSHIP_TOKEN")
    # It is a secret.
    is_sent = token is not None and ENDPOINT.startswith("grpcs://")
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if is_sent else [])


def _convert(array, wanted, what):
    """The same values in another type, or an error: Arrow's own casts make NULL of attributes of other names."""
    if array.type == wanted:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        found, names = ([field.name for field in fields] for fields in (array.type, wanted))
        if sorted(found) != sorted(names):
            raise TypeError(f"{what} has the attributes {', '.join(found)}, not {', '.join(names)}; a CAST to the struct renames them")
        parts = array.flatten()
        fields = [_convert(parts[found.index(field.name)], field.type, what) for field in wanted]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=array.is_null())
    if pa.types.is_list(wanted) and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        lengths = pc.fill_null(array.value_lengths(), 0).to_pylist()
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        values = _convert(array.flatten(), wanted.value_type, what)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=wanted, mask=array.is_null())
    if pa.types.is_decimal(wanted):
        return pa.array([None if text is None else _decimal(text, what) for text in array.to_pylist()], wanted)
    if pa.types.is_string(wanted) and pa.types.is_decimal(array.type):
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], wanted)
    if _is_zoned(array.type) != _is_zoned(wanted) and pa.types.is_temporal(array.type) and pa.types.is_temporal(wanted):
        # Arrow would take every zone for UTC, and not for the session's.
        raise TypeError(f"{what} is {array.type}, not {wanted}; a CAST converts it in the session's time zone")
    try:
        return array.cast(wanted)
    except pa.ArrowException as cause:
        raise TypeError(f"{what} is {array.type}, not {wanted}: {cause}") from cause


def _is_zoned(ty):
    return pa.types.is_timestamp(ty) and ty.tz is not None


def _decimal(text, what):
    try:
        value = decimal.Decimal(text)
        if value.is_finite():
            context = decimal.Context(prec=PRECISION, rounding=decimal.ROUND_HALF_UP)
            return value.quantize(decimal.Decimal(1).scaleb(-SCALE), context=context)
    except decimal.InvalidOperation:
        pass
    raise ValueError(f"{what} is {text}, which Spark's decimal({PRECISION}, {SCALE}) cannot hold")
"#;

/// The module for an image's functions, which a server at `endpoint` answers. A function that Spark cannot call becomes a
/// comment that says why.
pub fn spark(manifest: &Manifest, endpoint: &str) -> Result<Vec<String>> {
    let image = manifest.image();
    let mut parts = vec![format!(
        "\"\"\"Functions of image {image} for Spark 4.1 and later: register(spark) makes them known to SQL.\n\n\
             A volatile function, which is the default, is non-deterministic to Spark, which refuses it in aggregates and\n\
             joins: declare it \"immutable\" or \"stable\" in transship.toml, or name it in register(spark, deterministic=[...]).\n\"\"\"\n\n\
             {PREAMBLE}\n\n# Where the image's functions answer Flight (transship deploy). The environment of the workers has the token, TRANSSHIP_TOKEN,\n\
             # and names a file of certificates, TRANSSHIP_CA, where the system's authorities do not vouch for it.\nENDPOINT = {}",
        quote(endpoint)
    )];
    let mut names = Vec::new();
    for entry in &manifest.functions {
        let Some(signature) = entry.signature()? else { continue };
        let python = python_name(parts.len(), &signature.function);
        match function(&python, &signature, entry.strict) {
            Ok((text, result)) => {
                let name = quote(&signature.function);
                let is_deterministic = if entry.volatility == Volatility::Volatile {
                    format!("{name} in deterministic")
                } else {
                    "True".to_string()
                };
                names.push(format!("    _register(spark, {name}, arrow_udf({python}, {result}), {is_deterministic})"));
                parts.push(text);
            }
            Err(reason) => parts.push(comment(&format!("{} is left out: {reason}.", quote(&signature.function)))),
        }
    }
    if names.is_empty() {
        names.push("    pass".to_string());
    }
    parts.push(format!(
        "def _register(spark, name, function, is_deterministic):\n    \
         spark.udf.register(name, function if is_deterministic else function.asNondeterministic())\n\n\n\
         def register(spark, deterministic=()):\n    \
         \"\"\"Makes the functions known to a session's SQL; Spark may call the deterministic ones as often as it likes.\"\"\"\n    \
         deterministic = {{deterministic}} if isinstance(deterministic, str) else set(deterministic)\n{}",
        names.join("\n")
    ));
    Ok(parts)
}

/// A name for the Python function, by which tracebacks and profiles tell the function. Numbers keep names apart.
fn python_name(number: usize, function: &str) -> String {
    let is_plain = function.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_plain { format!("function_{number}_{function}") } else { format!("function_{number}") }
}

/// The Python function of a function, and its result's type in Spark's SQL, as a Python string; or why there is none.
fn function(python: &str, signature: &Signature, strict: bool) -> std::result::Result<(String, String), String> {
    if signature.kind != FunctionKind::Scalar {
        return Err(format!("it is a {} function", signature.kind.name()));
    }
    if signature.arguments.is_empty() {
        return Err("Spark has no batches without columns".to_string());
    }
    let unsupported = |ty: &Type| format!("Spark has no type for {ty}");
    let mut wanted = Vec::new();
    for argument in &signature.arguments {
        spark_type(&argument.ty, false).ok_or_else(|| unsupported(&argument.ty))?;
        wanted.push(arrow_type(&argument.ty, Side::Server));
    }
    let is_numeric = has_numeric(&signature.result);
    let result = spark_type(&signature.result, is_numeric).ok_or_else(|| unsupported(&signature.result))?;
    let arguments: Vec<String> = (1..=wanted.len()).map(|position| format!("arg{position}")).collect();
    let returned = arrow_type(&signature.result, Side::Spark);
    let text = format!(
        "def {python}({}) -> pa.Array:\n    return _call({}, [{}], [{}], {returned}, strict={})",
        arguments.iter().map(|name| format!("{name}: pa.Array")).collect::<Vec<_>>().join(", "),
        quote(&signature.function),
        arguments.join(", "),
        wanted.join(", "),
        if strict { "True" } else { "False" },
    );
    Ok((text, format!("{}{}", if is_numeric { "f" } else { "" }, quote(&result))))
}

/// A comment of one line, whatever characters the text has.
fn comment(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("# {plain}")
}

/// Whether a type has a decimal in it.
fn has_numeric(ty: &Type) -> bool {
    match ty {
        Type::Array(element) => has_numeric(element),
        Type::Composite(attributes) => attributes.iter().any(|attribute| has_numeric(&attribute.ty)),
        plain => *plain == Type::Numeric,
    }
}

/// The type in Spark's SQL, as the inside of a Python string, or f-string; none if it has none.
fn spark_type(ty: &Type, is_f_string: bool) -> Option<String> {
    Some(match ty {
        Type::Bool => "boolean".to_string(),
        Type::Int2 => "smallint".to_string(),
        Type::Int4 => "int".to_string(),
        Type::Int8 => "bigint".to_string(),
        Type::Float4 => "float".to_string(),
        Type::Float8 => "double".to_string(),
        Type::Bytea => "binary".to_string(),
        Type::Date => "date".to_string(),
        Type::Timestamp => "timestamp_ntz".to_string(),
        Type::TimestampTz => "timestamp".to_string(),
        Type::Array(element) => format!("array<{}>", spark_type(element, is_f_string)?),
        Type::Composite(attributes) => {
            let parts: Option<Vec<String>> = attributes
                .iter()
                .map(|attribute| {
                    let name = attribute.name.replace('`', "``");
                    // What stands in single braces would be run.
                    let name = if is_f_string { name.replace('{', "{{").replace('}', "}}") } else { name };
                    Some(format!("`{name}`: {}", spark_type(&attribute.ty, is_f_string)?))
                })
                .collect();
            format!("struct<{}>", parts?.join(", "))
        }
        numeric if *numeric == Type::Numeric => NUMERIC.to_string(),
        Type::Uuid | Type::Time | Type::Interval | Type::Range(_) => return None,
        udf_types::textual_type!() => "string".to_string(),
    })
}

/// Whose values a type describes: numeric is text to the server, and a decimal to Spark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Spark,
}

/// The Arrow type, in Python.
fn arrow_type(ty: &Type, side: Side) -> String {
    match ty {
        Type::Bool => "pa.bool_()".to_string(),
        Type::Int2 => "pa.int16()".to_string(),
        Type::Int4 => "pa.int32()".to_string(),
        Type::Int8 => "pa.int64()".to_string(),
        Type::Float4 => "pa.float32()".to_string(),
        Type::Float8 => "pa.float64()".to_string(),
        Type::Bytea => "pa.binary()".to_string(),
        Type::Date => "pa.date32()".to_string(),
        Type::Timestamp => "pa.timestamp(\"us\")".to_string(),
        Type::TimestampTz => "pa.timestamp(\"us\", \"UTC\")".to_string(),
        Type::Array(element) => format!("pa.list_(pa.field(\"item\", {}))", arrow_type(element, side)),
        Type::Composite(attributes) => {
            let fields: Vec<String> = attributes
                .iter()
                .map(|attribute| format!("({}, {})", quote(&attribute.name), arrow_type(&attribute.ty, side)))
                .collect();
            format!("pa.struct([{}])", fields.join(", "))
        }
        Type::Numeric if side == Side::Spark => "pa.decimal128(PRECISION, SCALE)".to_string(),
        _ => "pa.string()".to_string(),
    }
}

/// A Python string; JSON's are a part of them.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names come from images, whose labels anybody may have written.
    #[test]
    fn names_are_never_run() {
        let spark = |returns: &str| {
            let returns = serde_json::Value::from(returns);
            let text = format!(
                "name = 'a'\ntemplate = 'go'\nfunctions = [{{ name = 'f', arguments = ['int8'], returns = {returns} }}]"
            );
            spark(&Manifest::parse(&text).unwrap(), "grpc://a:8815").unwrap()
        };
        let parts = spark("(\"{__import__('os').abort()}\" int4, b numeric)");
        let last = parts.last().unwrap();
        assert!(
            last.contains("f\"struct<`{{__import__('os').abort()}}`: int, `b`: decimal({PRECISION}, {SCALE})>\""),
            "{last}"
        );
        let parts = spark("(\"{x}\" int4)");
        assert!(parts.last().unwrap().contains(" \"struct<`{x}`: int>\""));
        // Those with ends of lines are no names.
        let returns = serde_json::Value::from("(\"\nimport os\r\" uuid)");
        let text =
            format!("name = 'a'\ntemplate = 'go'\nfunctions = [{{ name = 'f', arguments = [], returns = {returns} }}]");
        assert!(Manifest::parse(&text).is_err());
    }

    #[test]
    fn functions_that_spark_cannot_call_are_told() {
        let manifest = Manifest::parse(
            "name = 'a'\ntemplate = 'go'\nfunctions = [\n\
             { name = 'f', arguments = ['int8', 'text[]'], returns = '(a int4, b numeric)', volatility = 'immutable', strict = true },\n\
             { name = 'g', arguments = ['uuid'], returns = 'int4' }, { name = 'h', arguments = [], returns = 'int4' },\n\
             { name = 's', arguments = ['int4'], returns = 'int4', kind = 'table' }, { name = 'v', arguments = ['int4'], returns = 'int4' }]",
        );
        let parts = spark(&manifest.unwrap(), "grpc://a:8815").unwrap();
        assert!(parts[0].ends_with("ENDPOINT = \"grpc://a:8815\""));
        assert_eq!(
            parts[1],
            "def function_1_f(arg1: pa.Array, arg2: pa.Array) -> pa.Array:\n    \
             return _call(\"f\", [arg1, arg2], [pa.int64(), pa.list_(pa.field(\"item\", pa.string()))], \
             pa.struct([(\"a\", pa.int32()), (\"b\", pa.decimal128(PRECISION, SCALE))]), strict=True)"
        );
        assert_eq!(parts[2], "# \"g\" is left out: Spark has no type for uuid.");
        assert_eq!(parts[3], "# \"h\" is left out: Spark has no batches without columns.");
        assert_eq!(parts[4], "# \"s\" is left out: it is a table function.");
        assert!(parts[6].ends_with(
            "_register(spark, \"f\", arrow_udf(function_1_f, f\"struct<`a`: int, `b`: decimal({PRECISION}, {SCALE})>\"), True)\n    \
             _register(spark, \"v\", arrow_udf(function_5_v, \"int\"), \"v\" in deterministic)"
        ));
    }
}
