//! Databend's form of Flight: its types, and replies without row numbers (`docs/dialects.md`).
//!
//! Databend declares functions itself and compares its types with those of `GetFlightInfo` to the letter. Some of its clients send
//! headers of their own, which get these types; the engine sends none, and gets the layout of its own batches, as any client does.
//! Types that Databend lacks (numeric, uuid, time, interval, ...) travel as VARCHAR, in the JSON form of `docs/types.md`. A VARIANT
//! is the text of a JSON value as bytes, which become the text of a `json`: the handler reads it, as over every other transport.
//!
//! In: batches in the protocol's own layout, whose values nobody has checked. Out: columns of the declared types, and replies of
//! theirs. No value nests deeper than its declared type.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{LargeStringBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, ListArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_select::concat::concat;
use arrow_select::filter::filter;
use arrow_select::nullif::nullif;
use udf_codec::adapt::adapt;
use udf_codec::constants::Constants;
use udf_codec::json::encode_value_or_null;
use udf_codec::json_text::decimal_text;
use udf_codec::unreadable::Unreadable;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;

use crate::function::Arrived;
use crate::plain::{Misfit, from_plain};

/// How the names of Databend's headers begin.
const HEADERS: &str = "x-databend-";
/// Where Databend's clients read how many fields of a function's schema are arguments.
const INPUT_COUNT: &str = "x-databend-udf-input-count";
/// What says that a field's bytes are a VARIANT.
const VARIANT: (&str, &str) = ("Extension", "Variant");
/// Texts that are read at a time: in between, each takes several times its memory.
const ROWS_OF_PIECE: usize = 8192;
/// Bytes of the widest value that is read from a text: an interval.
const WIDEST: usize = 16;
/// Bytes that no text of such a value needs. JSON takes many times its length while it is read.
const MOST_TEXT: usize = 1024;

/// Whether headers of these names come from Databend.
pub(crate) fn has_header<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| name.starts_with(HEADERS))
}

/// Whether a client's schema has fields of Databend's VARIANT.
pub(crate) fn has_variant(schema: &Schema) -> bool {
    schema.fields().iter().any(|field| field.metadata().get(VARIANT.0).is_some_and(|name| name == VARIANT.1))
}

/// What the metadata of a function's schema says of its arguments.
pub(crate) fn input_count(signature: &Signature) -> (String, String) {
    (INPUT_COUNT.to_string(), signature.arguments.len().to_string())
}

/// Fields of the arguments, then of the results, in Databend's types.
pub(crate) fn fields(signature: &Signature) -> Vec<Field> {
    let arguments = signature.arguments.iter().map(|argument| field(&argument.name, &argument.ty));
    arguments.chain(results(signature).iter().map(|(name, ty)| field(name, ty))).collect()
}

/// The schema of a reply: one field of a scalar function, all columns of a table function.
pub(crate) fn reply_schema(signature: &Signature) -> SchemaRef {
    Arc::new(Schema::new(results(signature).iter().map(|(name, ty)| field(name, ty)).collect::<Vec<_>>()))
}

/// Databend's calls as calls of the function, which `Function::check` refuses if they are not as many columns.
pub(crate) fn arguments(signature: &Signature, arrived: Arrived) -> Result<Arrived, Unreadable> {
    let Arrived { others, constants } = arrived;
    if others.num_columns() + constants.positions().len() != signature.arguments.len() {
        return Ok(Arrived { others, constants });
    }
    let schema = signature.call_schema();
    let (mut rest, mut columns, mut fields, mut values) = (others.columns().iter(), vec![], vec![], vec![]);
    for (position, argument) in signature.arguments.iter().enumerate() {
        let within = |cause| match cause {
            Unreadable::Misfit(fact) => Unreadable::Misfit(format!("column {}: {fact}", position + 1)),
            Unreadable::TooLarge => Unreadable::TooLarge,
        };
        let ty = &argument.ty;
        if let Some(value) = constants.at(position) {
            values.push((position, convert(&READ, ty, value).map_err(within)?));
        } else if let Some(column) = rest.next() {
            columns.push(convert(&READ, ty, column).map_err(within)?);
            fields.push(schema.field(position).clone());
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(others.num_rows()));
    let others = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options);
    Ok(Arrived { others: others.map_err(malformed)?, constants: Constants::new(values) })
}

/// A function's reply as Databend reads it.
pub(crate) fn reply(signature: &Signature, reply: &RecordBatch) -> Result<RecordBatch, Unreadable> {
    let column = reply.columns().last().ok_or_else(|| "it has no columns".to_string())?;
    let mut columns = Vec::new();
    if has_columns(signature) {
        let rows = column.as_struct();
        for (attribute, part) in signature.result.attributes().iter().zip(rows.columns()) {
            columns.push(convert(&WRITE, &attribute.ty, &below(rows.nulls(), part).map_err(malformed)?)?);
        }
    } else {
        columns.push(convert(&WRITE, &signature.result, column)?);
    }
    RecordBatch::try_new(reply_schema(signature), columns).map_err(malformed)
}

/// Whether a table function's results are rows, whose parts are columns of Databend's table.
fn has_columns(signature: &Signature) -> bool {
    signature.kind == FunctionKind::Table && matches!(signature.result, Type::Range(_) | Type::Composite(_))
}

fn results(signature: &Signature) -> Vec<(String, Type)> {
    if has_columns(signature) {
        let attributes = signature.result.attributes().into_iter();
        return attributes.map(|attribute| (attribute.name, attribute.ty)).collect();
    }
    vec![("output".to_string(), signature.result.clone())]
}

fn data_type(ty: &Type) -> DataType {
    match ty {
        Type::Bool | Type::Int2 | Type::Int4 | Type::Int8 | Type::Float4 | Type::Float8 | Type::Date => ty.data_type(),
        Type::Timestamp | Type::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::Bytea | Type::Json => DataType::LargeBinary,
        Type::Array(element) => DataType::List(Arc::new(field("item", element))),
        Type::Range(_) | Type::Composite(_) => {
            DataType::Struct(ty.attributes().iter().map(|attribute| field(&attribute.name, &attribute.ty)).collect())
        }
        _ => DataType::LargeUtf8,
    }
}

fn field(name: &str, ty: &Type) -> Field {
    let field = Field::new(name, data_type(ty), true);
    let (key, value) = VARIANT;
    if *ty == Type::Json { field.with_metadata(HashMap::from([(key.into(), value.into())])) } else { field }
}

/// From Databend's values to the protocol's, or the reverse.
struct Way {
    field: fn(&str, &Type) -> Field,
    convert: fn(&Type, &ArrayRef) -> Result<ArrayRef, Unreadable>,
}

const READ: Way = Way { field: |name, ty| ty.field(name), convert: read };
const WRITE: Way = Way { field, convert: write };

/// A column of a type as the other side has it. What lies below NULL is no value of the column, whatever it is.
fn convert(way: &Way, ty: &Type, column: &ArrayRef) -> Result<ArrayRef, Unreadable> {
    match ty {
        Type::Array(element) => {
            let lists = column.as_list_opt::<i32>().ok_or_else(|| misfit(ty, column))?;
            let (offsets, elements) = elements_of(lists).map_err(malformed)?;
            let (elements, field) = (convert(way, element, &elements)?, Arc::new((way.field)("item", element)));
            let lists = ListArray::try_new(field, offsets, elements, lists.nulls().cloned());
            Ok(Arc::new(lists.map_err(malformed)?))
        }
        Type::Range(_) | Type::Composite(_) => {
            let attributes = ty.attributes();
            let rows = column.as_struct_opt().filter(|rows| rows.num_columns() == attributes.len());
            let rows = rows.ok_or_else(|| misfit(ty, column))?;
            let (mut parts, mut fields) = (Vec::new(), Vec::new());
            // Parts stand for attributes by their order.
            for (attribute, part) in attributes.iter().zip(rows.columns()) {
                parts.push(convert(way, &attribute.ty, &below(rows.nulls(), part).map_err(malformed)?)?);
                fields.push((way.field)(&attribute.name, &attribute.ty));
            }
            let rows = StructArray::try_new_with_length(fields.into(), parts, rows.nulls().cloned(), rows.len());
            Ok(Arc::new(rows.map_err(malformed)?))
        }
        _ => (way.convert)(ty, column),
    }
}

fn read(ty: &Type, column: &ArrayRef) -> Result<ArrayRef, Unreadable> {
    match (ty, column.data_type()) {
        (Type::Numeric, DataType::Utf8) => read_decimals(column.as_string(), MAX_MESSAGE_BYTES),
        (Type::Uuid | Type::Time | Type::Interval, DataType::Utf8) => read_texts(ty, column.as_string()),
        (Type::Json, DataType::Binary) => from_plain(ty, column).map_err(|misfit| unreadable(ty, &misfit)),
        (Type::TimestampTz, DataType::Timestamp(TimeUnit::Microsecond, None)) => {
            Ok(Arc::new(column.as_primitive::<TimestampMicrosecondType>().clone().with_data_type(ty.data_type())))
        }
        (_, found) if *found == ty.data_type() => Ok(column.clone()),
        _ => Err(misfit(ty, column)),
    }
}

/// Decimals as at most `left` bytes of digits. An exponent may stand for many times its own length.
fn read_decimals(texts: &StringArray, mut left: usize) -> Result<ArrayRef, Unreadable> {
    let mut builder = StringBuilder::with_capacity(texts.len(), 0);
    for (row, text) in texts.iter().enumerate() {
        let Some(text) = text else {
            builder.append_null();
            continue;
        };
        let misfit = || unreadable(&Type::Numeric, &Misfit { row, shown: "too many digits".to_string() });
        let digits = decimal_text(text).ok_or_else(misfit)?;
        left = left.checked_sub(digits.len()).ok_or(Unreadable::TooLarge)?;
        builder.append_value(digits);
    }
    Ok(Arc::new(builder.finish()))
}

/// Values of a fixed width from their texts.
fn read_texts(ty: &Type, texts: &StringArray) -> Result<ArrayRef, Unreadable> {
    if texts.len().saturating_mul(WIDEST) > MAX_MESSAGE_BYTES {
        return Err(Unreadable::TooLarge);
    }
    if let Some(row) = texts.iter().position(|text| text.is_some_and(|text| text.len() > MOST_TEXT)) {
        return Err(unreadable(ty, &Misfit { row, shown: format!("a text of more than {MOST_TEXT} bytes") }));
    }
    let mut pieces = Vec::new();
    // At least one, which has the type.
    for first in (0..texts.len().max(1)).step_by(ROWS_OF_PIECE) {
        let (offsets, bytes, nulls) = texts.slice(first, ROWS_OF_PIECE.min(texts.len() - first)).into_parts();
        let piece: ArrayRef = Arc::new(BinaryArray::new(offsets, bytes, nulls));
        let read = from_plain(ty, &piece);
        pieces.push(read.map_err(|misfit| unreadable(ty, &Misfit { row: first + misfit.row, ..misfit }))?);
    }
    let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    concat(&pieces).map_err(malformed)
}

fn write(ty: &Type, column: &ArrayRef) -> Result<ArrayRef, Unreadable> {
    match ty {
        Type::Uuid | Type::Time | Type::Interval => {
            let (mut builder, mut text) = (LargeStringBuilder::with_capacity(column.len(), 0), String::new());
            for row in 0..column.len() {
                if column.is_null(row) {
                    builder.append_null();
                    continue;
                }
                text.clear();
                encode_value_or_null(&mut text, ty, column, row);
                if *ty == Type::Interval {
                    text = text.replace(':', ": ").replace(',', ", ");
                }
                // Of these types, only strings have quotes at their ends, and none has escapes.
                builder.append_value(text.trim_matches('"'));
            }
            Ok(Arc::new(builder.finish()))
        }
        Type::TimestampTz => {
            Ok(Arc::new(column.as_primitive::<TimestampMicrosecondType>().clone().with_data_type(data_type(ty))))
        }
        _ => Ok(adapt(column, &data_type(ty))?),
    }
}

/// The elements of all lists that are not NULL, and their offsets from 0.
fn elements_of(lists: &ListArray) -> Result<(OffsetBuffer<i32>, ArrayRef), ArrowError> {
    let first = usize::try_from(lists.value_offsets()[0]).unwrap_or_default();
    let lengths: Vec<usize> = lists.offsets().lengths().collect();
    let elements = lists.values().slice(first, lengths.iter().sum());
    let is_hidden = |row: usize| lists.is_null(row) && lengths[row] > 0;
    if !(0..lists.len()).any(is_hidden) {
        return Ok((OffsetBuffer::from_lengths(lengths), elements));
    }
    let mut is_kept = BooleanBufferBuilder::new(elements.len());
    lengths.iter().enumerate().for_each(|(row, length)| is_kept.append_n(*length, lists.is_valid(row)));
    let elements = filter(&elements, &BooleanArray::new(is_kept.finish(), None))?;
    let lengths = lengths.into_iter().enumerate().map(|(row, length)| if lists.is_valid(row) { length } else { 0 });
    Ok((OffsetBuffer::from_lengths(lengths), elements))
}

/// A part of rows, which is NULL where they are.
fn below(rows: Option<&NullBuffer>, part: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match rows.filter(|rows| rows.null_count() > 0) {
        Some(rows) => nullif(part, &BooleanArray::new(!rows.inner(), None)),
        None => Ok(part.clone()),
    }
}

fn misfit(ty: &Type, column: &ArrayRef) -> Unreadable {
    Unreadable::Misfit(format!("values of {} are not of type {ty}", column.data_type()))
}

fn unreadable(ty: &Type, misfit: &Misfit) -> Unreadable {
    Unreadable::Misfit(format!("row {} holds {}, which is not of type {ty}", misfit.row + 1, misfit.shown))
}

fn malformed(cause: ArrowError) -> Unreadable {
    Unreadable::Misfit(cause.to_string())
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        BinaryArray, Int64Array, LargeBinaryArray, LargeStringArray, StringViewArray, TimestampMicrosecondArray,
        TimestampSecondArray,
    };
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use udf_codec::client_layout::ClientLayout;
    use udf_codec::json::decode_column;
    use udf_types::signature::Argument;
    use udf_types::types::TABLE;

    use super::*;

    fn named(name: &str) -> Type {
        Type::from_name(name).unwrap()
    }

    fn signature(kind: FunctionKind, arguments: &[&str], result: &str) -> Signature {
        let argument = |(position, ty): (usize, &&str)| Argument { name: format!("a{position}"), ty: named(ty) };
        let arguments = arguments.iter().enumerate().map(argument).collect();
        Signature { kind, ..Signature::scalar("f", arguments, named(result)) }
    }

    fn column(ty: &Type, values: &Value) -> ArrayRef {
        decode_column(ty, values.as_array().unwrap()).unwrap()
    }

    fn texts(values: Vec<Option<&str>>) -> ArrayRef {
        Arc::new(StringArray::from(values))
    }

    /// A column of Databend's as the server reads it: in the protocol's layout first.
    fn read_in_layout(ty: &Type, column: ArrayRef) -> Result<ArrayRef, Unreadable> {
        let schema = Arc::new(Schema::new(vec![Field::new("", column.data_type().clone(), true)]));
        let batch = RecordBatch::try_new(schema, vec![column]).unwrap();
        let batch = ClientLayout::of(batch.schema_ref()).read(batch, MAX_MESSAGE_BYTES)?;
        convert(&READ, ty, batch.column(0))
    }

    fn misfit_of(ty: &str, column: ArrayRef) -> String {
        match read_in_layout(&named(ty), column) {
            Err(Unreadable::Misfit(fact)) => fact,
            other => panic!("{ty}: {other:?}"),
        }
    }

    #[test]
    fn types_are_databends_to_the_letter() {
        let variant = || HashMap::from([("Extension".to_string(), "Variant".to_string())]);
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (name, wanted) in [
            ("bool", DataType::Boolean),
            ("int2", DataType::Int16),
            ("int4", DataType::Int32),
            ("int8", DataType::Int64),
            ("float4", DataType::Float32),
            ("float8", DataType::Float64),
            ("date", DataType::Date32),
            ("timestamp", micros.clone()),
            ("timestamptz", micros),
            ("bytea", DataType::LargeBinary),
            ("json", DataType::LargeBinary),
        ] {
            let ty = named(name);
            let metadata = if name == "json" { variant() } else { HashMap::new() };
            assert_eq!(field("x", &ty), Field::new("x", wanted, true).with_metadata(metadata), "{name}");
        }
        for name in ["text", "numeric", "uuid", "time", "timetz", "interval", "inet", "cidr", "macaddr", "datetime2"] {
            assert_eq!(field("x", &named(name)), Field::new("x", DataType::LargeUtf8, true), "{name}");
        }
        let item = Field::new("item", DataType::LargeBinary, true).with_metadata(variant());
        assert_eq!(*field("x", &named("json[]")).data_type(), DataType::List(Arc::new(item)));
        let parts = vec![
            Field::new("n", DataType::LargeUtf8, true),
            Field::new("j", DataType::LargeBinary, true).with_metadata(variant()),
        ];
        let rows = DataType::Struct(parts.clone().into());
        assert_eq!(field("x", &named("(n numeric, j json)")), Field::new("x", rows, true));

        let scalar = signature(FunctionKind::Scalar, &["int8", "json"], "(n numeric, j json)");
        let names: Vec<_> = fields(&scalar).iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["a0", "a1", "output"]);
        assert_eq!(input_count(&scalar).1, "2");
        // A table has its own columns, and none of row numbers.
        let table = signature(FunctionKind::Table, &["int8"], "(n numeric, j json)");
        assert_eq!(fields(&table)[1..], parts);
        assert_eq!(reply_schema(&table).fields().iter().map(|field| field.as_ref().clone()).collect::<Vec<_>>(), parts);
        let one = signature(FunctionKind::Table, &[], "numeric");
        assert_eq!(fields(&one), [Field::new("output", DataType::LargeUtf8, true)]);
    }

    #[test]
    fn databend_is_told_by_headers_and_variants() {
        assert!(has_header(["content-type", "x-databend-tenant"].into_iter()));
        assert!(!has_header(["x-databen", "y-x-databend-tenant"].into_iter()));
        assert!(has_variant(&Schema::new(vec![field("", &Type::Text), field("", &Type::Json)])));
        assert!(!has_variant(&Schema::new(vec![field("", &Type::Text), Type::Json.field("")])));
    }

    /// Values of each type become Databend's and come back, alone and in what is built of them, also in a slice.
    #[test]
    fn every_value_comes_back() {
        for entry in TABLE {
            let mut values: Vec<Value> =
                entry.examples.iter().map(|(_, json)| serde_json::from_str(json).unwrap()).collect();
            values.push(Value::Null);
            let array = Type::Array(Arc::new(entry.ty.clone()));
            let rows = named(&format!("(x {0}, y {0}[])", entry.name));
            let row = json!({"x": values[0], "y": values});
            let range =
                json!({"lower": values[0], "upper": null, "lower_inc": true, "upper_inc": false, "empty": false});
            for (ty, values) in [
                (entry.ty.clone(), json!(values)),
                (array, json!([values, null, [], [null]])),
                (rows.clone(), json!([row, null, {"x": null, "y": null}])),
                (Type::Array(Arc::new(rows)), json!([[row, null], null, []])),
                (Type::Range(Arc::new(entry.ty.clone())), json!([range, null])),
            ] {
                let own = column(&ty, &values);
                for own in [own.clone(), own.slice(1, own.len() - 1), own.slice(0, 0)] {
                    let written = convert(&WRITE, &ty, &own).unwrap();
                    assert_eq!(*written.data_type(), data_type(&ty), "{ty}");
                    assert_eq!(&read_in_layout(&ty, written).unwrap(), &own, "{ty}");
                    // Some clients send the protocol's own types, with Databend's headers.
                    assert_eq!(&convert(&READ, &ty, &own).unwrap(), &own, "{ty}");
                }
            }
        }
    }

    #[test]
    fn values_are_written_as_databend_reads_them() {
        for (ty, values, expected) in [
            ("uuid", json!(["00000000-0000-0000-0000-0000000000ff", null]), ["00000000-0000-0000-0000-0000000000ff"]),
            ("time", json!(["24:00:00", null]), ["24:00:00.000000"]),
            ("numeric", json!(["1.50", null]), ["1.50"]),
            (
                "interval",
                json!([{"months": 1, "days": -2, "microseconds": "9007199254740993"}, null]),
                [r#"{"months": 1, "days": -2, "microseconds": "9007199254740993"}"#],
            ),
        ] {
            let ty = named(ty);
            let written = convert(&WRITE, &ty, &column(&ty, &values)).unwrap();
            assert_eq!(written.as_ref(), &LargeStringArray::from(vec![Some(expected[0]), None]), "{ty}");
        }
        let written = convert(&WRITE, &Type::Json, &column(&Type::Json, &json!(["{\"a\": 1}", null]))).unwrap();
        assert_eq!(written.as_ref(), &LargeBinaryArray::from(vec![Some(b"{\"a\": 1}".as_slice()), None]));
        let ty = Type::TimestampTz;
        let written = convert(&WRITE, &ty, &column(&ty, &json!(["1970-01-01T00:00:01Z", "infinity"]))).unwrap();
        assert_eq!(written.as_ref(), &TimestampMicrosecondArray::from(vec![1_000_000, i64::MAX]));
    }

    #[test]
    fn texts_are_read_whatever_layout_they_have() {
        let values = vec![Some("1.5e2"), None, Some("NaN")];
        let expected = texts(vec![Some("150"), None, Some("NaN")]);
        let forms: [ArrayRef; 3] = [
            texts(values.clone()),
            Arc::new(LargeStringArray::from(values.clone())),
            Arc::new(StringViewArray::from(values)),
        ];
        for form in forms {
            assert_eq!(&read_in_layout(&Type::Numeric, form).unwrap(), &expected);
        }
        // More than a piece.
        let rows = 2 * ROWS_OF_PIECE + 7;
        let times = texts((0..rows).map(|row| if row % 3 == 0 { None } else { Some("00:00:01") }).collect());
        let read = read_in_layout(&Type::Time, times).unwrap();
        assert_eq!((read.len(), read.null_count()), (rows, rows.div_ceil(3)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_row() {
        let bytes = |values: Vec<&[u8]>| Arc::new(LargeBinaryArray::from(values)) as ArrayRef;
        for (ty, column, expected) in [
            ("json", bytes(vec![b"{}", b"\xff"]), "row 2 holds a text that is not UTF-8, which is not of type json"),
            ("text", bytes(vec![b"a"]), "values of Binary are not of type text"),
            ("numeric", bytes(vec![b"1"]), "values of Binary are not of type numeric"),
            ("numeric", texts(vec![Some("1e999999")]), "row 1 holds too many digits"),
            ("uuid", texts(vec![None, Some("x")]), "row 2 holds \"x\", which is not of type uuid"),
            ("time", texts(vec![Some("25:00:00")]), "row 1 holds \"25:00:00\""),
            ("interval", texts(vec![Some("[1")]), "row 1 holds \"[1\""),
            ("int8", texts(vec![Some("1")]), "values of Utf8 are not of type int8"),
            ("int4", Arc::new(Int64Array::from(vec![1])), "values of Int64 are not of type int4"),
            ("timestamptz", Arc::new(TimestampSecondArray::from(vec![1])), "values of Timestamp"),
            ("int8[]", Arc::new(Int64Array::from(vec![1])), "values of Int64 are not of type int8[]"),
            ("(a int8)", Arc::new(Int64Array::from(vec![1])), "values of Int64 are not of type (a int8)"),
        ] {
            let found = misfit_of(ty, column);
            assert!(found.starts_with(expected), "{ty}: {found}");
        }
        let late = texts((0..=ROWS_OF_PIECE).map(|row| (row == ROWS_OF_PIECE).then_some("x")).collect());
        assert!(misfit_of("uuid", late).starts_with(&format!("row {} holds \"x\"", ROWS_OF_PIECE + 1)));
        let parts = column(&named("(a int8, b int8)"), &json!([{"a": 1, "b": 2}]));
        assert!(misfit_of("(a int8)", parts).contains("are not of type (a int8)"));
    }

    /// A few bytes do not make the server take much memory, or nest deeply.
    #[test]
    fn no_text_costs_more_than_its_share() {
        for text in ["[".repeat(1 << 20), format!("[{}1]", "1,".repeat(1 << 20)), "0".repeat(1 << 20)] {
            for ty in ["interval", "time", "uuid"] {
                assert!(misfit_of(ty, texts(vec![Some(&text)])).contains("more than 1024 bytes"));
            }
        }
        assert!(misfit_of("interval", texts(vec![Some(&"[".repeat(MOST_TEXT))])).contains("is not of type interval"));
        // A NULL takes a bit and an offset.
        let rows = MAX_MESSAGE_BYTES / WIDEST + 1;
        assert_eq!(read_texts(&Type::Uuid, &StringArray::new_null(rows)), Err(Unreadable::TooLarge));
        let decimals = texts(vec![Some("1e64"); 10]);
        assert_eq!(read_decimals(decimals.as_string(), 649), Err(Unreadable::TooLarge));
        assert_eq!(read_decimals(decimals.as_string(), 650).unwrap().len(), 10);
    }

    #[test]
    fn what_lies_below_null_is_no_value() {
        let (hidden, uuid) = (Some("hidden"), Some("00000000-0000-0000-0000-0000000000ff"));
        let offsets = OffsetBuffer::from_lengths([1, 2, 0, 1]);
        let elements = texts(vec![uuid, hidden, hidden, uuid]);
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        let nulls = NullBuffer::from(vec![true, false, true, true]);
        let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, elements, Some(nulls)));
        let expected = column(&named("uuid[]"), &json!([[uuid], null, [], [uuid]]));
        for (first, count) in [(0, 4), (1, 3), (2, 2), (0, 2), (1, 1)] {
            let read = read_in_layout(&named("uuid[]"), lists.slice(first, count)).unwrap();
            assert_eq!(&read, &expected.slice(first, count));
        }
        let parts = vec![Arc::new(Field::new("u", DataType::Utf8, true))];
        let nulls = NullBuffer::from(vec![false, true, true]);
        let part = texts(vec![hidden, uuid, None]);
        let rows: ArrayRef = Arc::new(StructArray::new(parts.into(), vec![part], Some(nulls)));
        let expected = column(&named("(u uuid)"), &json!([null, {"u": uuid}, {"u": null}]));
        assert_eq!(&read_in_layout(&named("(u uuid)"), rows.clone()).unwrap(), &expected);
        assert_eq!(&read_in_layout(&named("(u uuid)"), rows.slice(1, 2)).unwrap(), &expected.slice(1, 2));
    }

    #[test]
    fn arguments_are_columns_and_constants() {
        let signature = signature(FunctionKind::Scalar, &["uuid", "json", "int8"], "int8");
        let uuid = Some("00000000-0000-0000-0000-0000000000ff");
        let schema = Schema::new(vec![field("p", &Type::Json), field("q", &Type::Int8)]);
        let variants: ArrayRef = Arc::new(BinaryArray::from(vec![Some(b"[1]".as_slice()), None]));
        let schema =
            ClientLayout::of(&schema).read(RecordBatch::new_empty(Arc::new(schema)), 1 << 20).unwrap().schema();
        let others = RecordBatch::try_new(schema, vec![variants, Arc::new(Int64Array::from(vec![1, 2]))]).unwrap();
        let arrived = |value: Option<&str>, others: RecordBatch| {
            let constants = Constants::new(vec![(0, texts(vec![value]))]);
            arguments(&signature, Arrived { others, constants })
        };
        let read = arrived(uuid, others.clone()).unwrap();
        assert_eq!(read.constants.at(0), Some(&column(&Type::Uuid, &json!([uuid]))));
        assert_eq!(read.others.column(0).as_ref(), texts(vec![Some("[1]"), None]).as_ref());
        assert_eq!(read.others.schema().field(0), &Type::Json.field("a1"));
        let Err(Unreadable::Misfit(fact)) = arrived(Some("x"), others.clone()) else { panic!("it is no UUID") };
        assert!(fact.starts_with("column 1: row 1 holds \"x\""), "{fact}");
        // The function says that there are too few.
        let fewer = others.project(&[0]).unwrap();
        assert_eq!(arrived(uuid, fewer.clone()).unwrap().others, fewer);
    }

    #[test]
    fn a_table_has_its_columns_without_row_numbers() {
        let signature = signature(FunctionKind::Table, &[], "(u uuid, t text)");
        let uuid = "00000000-0000-0000-0000-0000000000ff";
        let rows = column(&signature.result, &json!([{"u": uuid, "t": "a"}, null, {"u": null, "t": "b"}]));
        let numbers = column(&Type::Int4, &json!([0, 0, 7]));
        let whole = RecordBatch::try_from_iter_with_nullable([("row", numbers, true), ("f", rows, true)]).unwrap();
        let written = reply(&signature, &whole).unwrap();
        let expected = [vec![Some(uuid), None, None], vec![Some("a"), None, Some("b")]];
        assert_eq!(written.schema(), reply_schema(&signature));
        for (column, expected) in written.columns().iter().zip(expected) {
            assert_eq!(column.as_ref(), &LargeStringArray::from(expected));
        }
        let empty = reply(&signature, &whole.slice(0, 0)).unwrap();
        assert_eq!((empty.num_rows(), empty.num_columns()), (0, 2));
    }

    proptest! {
        /// Any bytes and any text are read or refused, and what is read is written, and read again, as the same values.
        #[test]
        fn anything_is_read_or_refused(
            values in proptest::collection::vec(proptest::option::of(".{0,40}"), 0..4),
            bytes in proptest::collection::vec(proptest::option::of(any::<Vec<u8>>()), 0..4),
            near in proptest::option::of(
                r#"-?[0-9]{1,3}(\.[0-9]{1,7})?(e-?[0-9]{1,5})?|[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{0,7})?|\{"(months|days|microseconds)": ?-?[0-9]{1,20}\}"#,
            ),
        ) {
            let mut values: Vec<Option<&str>> = values.iter().map(Option::as_deref).collect();
            values.push(near.as_deref());
            let bytes: Vec<Option<&[u8]>> = bytes.iter().map(Option::as_deref).collect();
            for entry in TABLE {
                let columns: [ArrayRef; 2] =
                    [Arc::new(LargeStringArray::from(values.clone())), Arc::new(LargeBinaryArray::from(bytes.clone()))];
                for column in columns {
                    let Ok(own) = read_in_layout(&entry.ty, column.clone()) else { continue };
                    prop_assert_eq!((own.len(), own.null_count()), (column.len(), column.null_count()));
                    prop_assert_eq!(own.data_type(), &entry.ty.data_type());
                    let written = convert(&WRITE, &entry.ty, &own).unwrap();
                    prop_assert_eq!(&read_in_layout(&entry.ty, written).unwrap(), &own);
                }
            }
        }
    }
}
