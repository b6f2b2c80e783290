//! A Python module for Spark: an Arrow UDF per function, which sends its batches to a server by Flight.
//!
//! Spark has no statement for functions that run elsewhere; `pyspark.sql.functions.arrow_udf` (Spark 4.1) hands Python
//! workers Arrow arrays, which go into the exchange of `docs/protocol.md` §4 as they are.

use crate::error::Result;
use crate::manifest::Manifest;
use crate::signature::{FunctionKind, Signature, Volatility};
use crate::types::Type;

/// What stands before the functions.
const PREAMBLE: &str = r#"import json

import pyarrow as pa
import pyarrow.flight as flight
from pyspark.sql.functions import arrow_udf

_clients = {}


def _call(name, columns, result):
    """The results for a batch of arguments (docs/protocol.md, section 4)."""
    client = _clients.get(ENDPOINT)
    if client is None:
        client = _clients[ENDPOINT] = flight.connect(ENDPOINT)
    rows = len(columns[0])
    batch = pa.RecordBatch.from_arrays(columns, [f"arg{i + 1}" for i in range(len(columns))])
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name))
    with writer:
        writer.begin(batch.schema)
        writer.write_with_metadata(batch, b'{"batch": 0}')
        writer.done_writing()
        chunk = reader.read_chunk()
    error = json.loads(chunk.app_metadata.to_pybytes()).get("error") if chunk.app_metadata else None
    if error:
        raise RuntimeError(f"container function {name!r}: {error['message']}\n{error.get('traceback', '')}".rstrip())
    answer = chunk.data.column(0)
    if len(answer) != rows:
        raise RuntimeError(f"container function {name!r} gave {len(answer)} results for {rows} rows")
    return answer if answer.type == result else answer.cast(result)


def _columns(arrays, types):
    arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
    return [array if array.type == wanted else array.cast(wanted) for array, wanted in zip(arrays, types)]
"#;

/// The module for an image's functions, which a server at `endpoint` answers. A function that Spark cannot call becomes a
/// comment that says why.
pub fn spark(manifest: &Manifest, endpoint: &str) -> Result<Vec<String>> {
    let image = manifest.image();
    let mut parts = vec![format!(
        "\"\"\"Functions of image {image} for Spark 4.1 and later: register(spark) makes them known to SQL.\"\"\"\n\n\
             {PREAMBLE}\n\n# Where the image's server answers Flight (transship deploy).\nENDPOINT = {}",
        quote(endpoint)
    )];
    let mut names = Vec::new();
    for entry in &manifest.functions {
        let Some(signature) = entry.signature()? else { continue };
        match function(&format!("function_{}", parts.len()), &signature) {
            Ok((text, result)) => {
                let volatile = if entry.volatility == Volatility::Volatile { ".asNondeterministic()" } else { "" };
                let python = format!("arrow_udf(function_{}, {}){volatile}", parts.len(), quote(&result));
                names.push(format!("    spark.udf.register({}, {python})", quote(&signature.function)));
                parts.push(text);
            }
            Err(reason) => parts.push(format!("# {} is left out: {reason}.", quote(&signature.function))),
        }
    }
    if names.is_empty() {
        names.push("    pass".to_string());
    }
    parts.push(format!(
        "def register(spark):\n    \"\"\"Makes the functions known to a session's SQL.\"\"\"\n{}",
        names.join("\n")
    ));
    Ok(parts)
}

/// The Python function of a function, and its result's type in Spark's SQL; or why there is none.
fn function(python: &str, signature: &Signature) -> std::result::Result<(String, String), String> {
    if signature.kind != FunctionKind::Scalar {
        return Err(format!("it is a {} function", signature.kind.name()));
    }
    if signature.arguments.is_empty() {
        return Err("Spark has no batches without columns".to_string());
    }
    let unsupported = |ty: &Type| format!("Spark has no type for {ty}");
    let mut wanted = Vec::new();
    for argument in &signature.arguments {
        spark_type(&argument.ty).ok_or_else(|| unsupported(&argument.ty))?;
        wanted.push(arrow_type(&argument.ty));
    }
    let result = spark_type(&signature.result).ok_or_else(|| unsupported(&signature.result))?;
    let arguments: Vec<String> = (1..=wanted.len()).map(|position| format!("arg{position}")).collect();
    let returned = arrow_type(&signature.result);
    let text = format!(
        "def {python}({}) -> pa.Array:\n    columns = _columns([{}], [{}])\n    return _call({}, columns, {returned})",
        arguments.iter().map(|name| format!("{name}: pa.Array")).collect::<Vec<_>>().join(", "),
        arguments.join(", "),
        wanted.join(", "),
        quote(&signature.function),
    );
    Ok((text, result))
}

/// The type in Spark's SQL; none if it has none.
fn spark_type(ty: &Type) -> Option<String> {
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
        Type::Array(element) => format!("array<{}>", spark_type(element)?),
        Type::Composite(attributes) => {
            let parts: Option<Vec<String>> = attributes
                .iter()
                .map(|attribute| {
                    Some(format!("`{}`: {}", attribute.name.replace('`', "``"), spark_type(&attribute.ty)?))
                })
                .collect();
            format!("struct<{}>", parts?.join(", "))
        }
        Type::Uuid | Type::Time | Type::Interval | Type::Range(_) => return None,
        crate::textual_type!() => "string".to_string(),
    })
}

/// The Arrow type, in Python.
fn arrow_type(ty: &Type) -> String {
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
        Type::Array(element) => format!("pa.list_(pa.field(\"item\", {}))", arrow_type(element)),
        Type::Composite(attributes) => {
            let fields: Vec<String> = attributes
                .iter()
                .map(|attribute| format!("({}, {})", quote(&attribute.name), arrow_type(&attribute.ty)))
                .collect();
            format!("pa.struct([{}])", fields.join(", "))
        }
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

    #[test]
    fn functions_that_spark_cannot_call_are_told() {
        let manifest = Manifest::parse(
            "name = 'a'\ntemplate = 'go'\nfunctions = [\n\
             { name = 'f', arguments = ['int8', 'text[]'], returns = '(a int4, b numeric)', volatility = 'immutable' },\n\
             { name = 'g', arguments = ['uuid'], returns = 'int4' }, { name = 'h', arguments = [], returns = 'int4' },\n\
             { name = 's', arguments = ['int4'], returns = 'int4', kind = 'table' }, { name = 'v', arguments = ['int4'], returns = 'int4' }]",
        );
        let parts = spark(&manifest.unwrap(), "grpc://a:8815").unwrap();
        assert!(parts[0].ends_with("ENDPOINT = \"grpc://a:8815\""));
        assert_eq!(
            parts[1],
            "def function_1(arg1: pa.Array, arg2: pa.Array) -> pa.Array:\n    \
             columns = _columns([arg1, arg2], [pa.int64(), pa.list_(pa.field(\"item\", pa.string()))])\n    \
             return _call(\"f\", columns, pa.struct([(\"a\", pa.int32()), (\"b\", pa.string())]))"
        );
        assert_eq!(parts[2], "# \"g\" is left out: Spark has no type for uuid.");
        assert_eq!(parts[3], "# \"h\" is left out: Spark has no batches without columns.");
        assert_eq!(parts[4], "# \"s\" is left out: it is a table function.");
        assert!(parts[6].ends_with(
            "spark.udf.register(\"f\", arrow_udf(function_1, \"struct<`a`: int, `b`: string>\"))\n    \
             spark.udf.register(\"v\", arrow_udf(function_5, \"int\").asNondeterministic())"
        ));
    }
}
