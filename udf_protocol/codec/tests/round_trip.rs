//! Every type through every codec and back, and the wire forms that other languages' servers are held to.

use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Float32Array, Float64Array, Int16Array, Int32Array,
    Int64Array, IntervalMonthDayNanoArray, ListArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
    Time64MicrosecondArray, TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, IntervalMonthDayNano, NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch, decode_schema, encode_schema};
use udf_codec::batch::CallBatch;
use udf_codec::{columns, json, parquet};
use udf_types::signature::{Argument, Signature};
use udf_types::textual_type;
use udf_types::types::{TABLE, Type};

/// Columns of a type, NULLs and the type's whole range included. Dates and timestamps stay within the years that
/// JSON's text form has.
fn column_of(ty: Type) -> BoxedStrategy<ArrayRef> {
    fn many<T: std::fmt::Debug + Clone + 'static>(
        values: impl Strategy<Value = T> + 'static,
        build: impl Fn(Vec<Option<T>>) -> ArrayRef + 'static,
    ) -> BoxedStrategy<ArrayRef> {
        vec(option::of(values), 0..20).prop_map(build).boxed()
    }
    let text = "\\PC*|[\\x01-\\x1f\"\\\\]*";
    match ty {
        Type::Bool => many(any::<bool>(), |v| Arc::new(BooleanArray::from(v))),
        Type::Int2 => many(any::<i16>(), |v| Arc::new(Int16Array::from(v))),
        Type::Int4 => many(any::<i32>(), |v| Arc::new(Int32Array::from(v))),
        Type::Int8 => many(any::<i64>(), |v| Arc::new(Int64Array::from(v))),
        Type::Float4 => many(any::<f32>(), |v| Arc::new(Float32Array::from(v))),
        Type::Float8 => many(any::<f64>(), |v| Arc::new(Float64Array::from(v))),
        textual_type!() => many(text, |v| {
            let mut builder = StringBuilder::new();
            v.into_iter().for_each(|value| builder.append_option(value));
            Arc::new(builder.finish())
        }),
        Type::Bytea => many(vec(any::<u8>(), 0..20), |v| Arc::new(BinaryArray::from_iter(v))),
        Type::Date => {
            many(prop_oneof![-719_162..2_932_897, Just(i32::MAX), Just(i32::MIN)], |v| Arc::new(Date32Array::from(v)))
        }
        Type::Timestamp | Type::TimestampTz => many(
            prop_oneof![-62_135_596_800_000_000..253_402_300_800_000_000_i64, Just(i64::MAX), Just(i64::MIN)],
            move |v| Arc::new(TimestampMicrosecondArray::from(v).with_data_type(ty.data_type())),
        ),
        Type::Uuid => many(any::<[u8; 16]>(), |v| {
            let mut builder = FixedSizeBinaryBuilder::new(16);
            for value in v {
                match value {
                    Some(value) => builder.append_value(value).unwrap(),
                    None => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }),
        Type::Time => many(0..=86_400_000_000_i64, |v| Arc::new(Time64MicrosecondArray::from(v))),
        Type::Interval => many((any::<i32>(), any::<i32>(), any::<i64>()), |v| {
            let value = |(months, days, nanoseconds)| IntervalMonthDayNano::new(months, days, nanoseconds);
            Arc::new(v.into_iter().map(|v| v.map(value)).collect::<IntervalMonthDayNanoArray>())
        }),
        Type::Array(element) => (column_of((*element).clone()), vec(option::of(0..4_usize), 0..20))
            .prop_map(move |(elements, mut lengths)| {
                // As many values as there are elements for.
                let mut left = elements.len();
                lengths.retain(|length| match left.checked_sub(length.unwrap_or(0)) {
                    Some(rest) => {
                        left = rest;
                        true
                    }
                    None => false,
                });
                let validity = lengths.iter().map(Option::is_some).collect();
                let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
                let elements = elements.slice(0, elements.len() - left);
                let field = Arc::new(element.field("item"));
                Arc::new(ListArray::new(field, offsets, elements, Some(validity))) as ArrayRef
            })
            .boxed(),
        Type::Range(_) | Type::Composite(_) => {
            let attributes = ty.attributes();
            let columns: Vec<_> = attributes.iter().map(|attribute| column_of(attribute.ty.clone())).collect();
            (columns, vec(any::<bool>(), 20))
                .prop_map(move |(columns, validity)| {
                    let rows = columns.iter().map(|column| column.len()).min().unwrap_or(0);
                    let validity = NullBuffer::from(&validity[..rows]);
                    let columns = columns.iter().map(|column| column.slice(0, rows)).collect();
                    let fields = attributes.iter().map(|attribute| attribute.ty.field(&attribute.name)).collect();
                    Arc::new(StructArray::new(fields, columns, Some(validity))) as ArrayRef
                })
                .boxed()
        }
    }
}

/// The table's types, and some that are built of them.
fn types() -> Vec<Type> {
    let built = ["int4[]", "range(timestamptz)", "(a int8, \"b c\" bytea[], d (e uuid, f range(numeric)))[]"];
    let built = built.map(|name| Type::from_name(name).unwrap());
    TABLE.iter().map(|entry| entry.ty.clone()).chain(built).collect()
}

fn any_type() -> impl Strategy<Value = Type> {
    prop::sample::select(types())
}

fn any_column() -> impl Strategy<Value = (Type, ArrayRef)> {
    any_type().prop_flat_map(|ty| column_of(ty.clone()).prop_map(move |column| (ty.clone(), column)))
}

/// A column as a reply would bring it, the signature of a function that would, and the column as that of a call.
fn through_columns(ty: &Type, column: &ArrayRef) -> (columns::ReplyHeader, Buffer, Signature, columns::Layout) {
    let signature = Signature::scalar("f", vec![Argument { name: "x".to_string(), ty: ty.clone() }], ty.clone());
    let columns = RecordBatch::try_new(signature.call_schema(), vec![column.clone()]).unwrap();
    let layout = columns::Layout::of(&signature.call_types(), &columns);
    let batch = CallBatch::new(7, columns);
    let body = columns::inline_body(&columns::CallHeader::new(&batch, &layout, ""), &layout);
    let (header, data): (columns::ReplyHeader, _) = columns::read_frame(&body).unwrap();
    assert!(header.extent() <= Some(data.len()));
    let data = Buffer::from(data);
    (header, data, signature, layout)
}

/// A column as a file, if its type has that form.
fn through_parquet(ty: &Type, column: &ArrayRef) -> Option<(Signature, Vec<u8>)> {
    let signature = Signature::scalar("f", vec![Argument { name: "x".to_string(), ty: ty.clone() }], ty.clone());
    parquet::check_types(&signature).ok()?;
    let batch = RecordBatch::try_new(signature.call_schema(), vec![column.clone()]).unwrap();
    Some((signature, parquet::encode(&batch)))
}

fn text_of(ty: &Type, column: &ArrayRef) -> String {
    let mut text = String::new();
    json::encode_column(&mut text, ty, column);
    text
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arrow_ipc_gives_back_what_it_took((ty, column) in any_column()) {
        let schema = Arc::new(arrow_schema::Schema::new(vec![ty.field("x")]));
        let batch = RecordBatch::try_new(schema.clone(), vec![column]).unwrap();
        let read_schema = decode_schema(&encode_schema(&schema)).unwrap();
        prop_assert_eq!(Type::from_field(read_schema.field(0)).unwrap(), ty);
        let message = BatchEncoder::default().encode(&batch).unwrap();
        let read = decode_batch(&message, read_schema).unwrap();
        // Bit for bit, so that -0 and NaN count.
        prop_assert_eq!(read.column(0).to_data(), batch.column(0).to_data());
    }

    #[test]
    fn columns_give_back_what_they_took((ty, column) in any_column(), slice in any::<(prop::sample::Index, prop::sample::Index)>()) {
        let start = slice.0.index(column.len() + 1);
        let column = column.slice(start, slice.1.index(column.len() - start + 1));
        let (mut header, data, signature, layout) = through_columns(&ty, &column);
        let read = columns::decode_reply(&signature, &header, &data, &columns::Layout::default()).unwrap();
        // Bit for bit, as text that says so.
        prop_assert_eq!(text_of(&ty, read.column(0)), text_of(&ty, &column));
        prop_assert_eq!(read.num_rows(), column.len());
        // A server reads the call as a client reads the reply.
        let call = columns::decode_call(&signature, header.rows, &header.buffers, &data).unwrap();
        prop_assert_eq!(text_of(&ty, call.column(0)), text_of(&ty, &column));
        // And so they do if the reply has no data, but refers to the call's.
        header.aliases = (0..header.buffers.len() / 2).filter(|number| header.buffers[2 * number + 1] > 0).collect();
        prop_assert_eq!(header.extent(), Some(0));
        let read = columns::decode_reply(&signature, &header, &Buffer::default(), &layout).unwrap();
        prop_assert_eq!(text_of(&ty, read.column(0)), text_of(&ty, &column));
    }

    #[test]
    fn columns_reader_survives_damage(
        (ty, column) in any_column(),
        rows in option::of(0..40_usize),
        places in vec((any::<prop::sample::Index>(), prop_oneof![0..80_usize, any::<usize>()]), 0..3),
        bytes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        aliases in vec(0..4_usize, 0..3),
    ) {
        let (mut header, data, signature, layout) = through_columns(&ty, &column);
        header.aliases = aliases;
        header.rows = rows.unwrap_or(header.rows);
        let count = header.buffers.len();
        places.iter().for_each(|(at, value)| header.buffers[at.index(count)] = *value);
        let mut damaged = data.to_vec();
        if !damaged.is_empty() {
            let size = damaged.len();
            bytes.iter().for_each(|(at, byte)| damaged[at.index(size)] = *byte);
        }
        // An error or other values, each of which can be read, but no panic.
        let damaged = Buffer::from(damaged);
        let reply = columns::decode_reply(&signature, &header, &damaged, &layout);
        let call = columns::decode_call(&signature, header.rows, &header.buffers, &damaged);
        for read in [reply, call].into_iter().flatten() {
            text_of(&ty, read.column(0));
        }
    }

    #[test]
    fn dictionaries_give_back_what_they_took(
        texts in vec("\\PC{0,9}", 1..9),
        places in vec(option::of(any::<prop::sample::Index>()), 0..20),
        damage in option::of((any::<prop::sample::Index>(), prop_oneof![0..80_usize, any::<usize>()])),
        bytes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let rows: Vec<_> = places.iter().map(|place| place.map(|place| place.index(texts.len()))).collect();
        let expected: StringArray = rows.iter().map(|row| row.map(|row| texts[row].as_str())).collect();
        let places: Int32Array = rows.iter().map(|row| row.map(|row| row as i32)).collect();
        // The places are laid out as a column of their own, the texts as another, which has no validity here.
        let (places, texts): (ArrayRef, ArrayRef) = (Arc::new(places), Arc::new(StringArray::from(texts)));
        let (mut header, mut data, ..) = through_columns(&Type::Int4, &places);
        let (of_texts, texts_data, signature, layout) = through_columns(&Type::Text, &texts);
        let start = data.len().next_multiple_of(64);
        data = [&data[..], &vec![0; start - data.len()], &texts_data[..]].concat().into();
        header.buffers.extend(of_texts.buffers[2..].chunks(2).flat_map(|place| [place[0] + start, place[1]]));
        header.dictionaries = [0, texts.len()].to_vec();
        let read = columns::decode_reply(&signature, &header, &data, &layout).unwrap();
        let found = read.column(0).as_dictionary::<Int32Type>().downcast_dict::<StringArray>().unwrap();
        prop_assert_eq!(found.into_iter().collect::<StringArray>(), expected);
        // Where nobody would look for one.
        for broken in [vec![1, 1], vec![0], vec![0, texts.len(), 7]] {
            let header = columns::ReplyHeader { dictionaries: broken, ..header.clone() };
            prop_assert!(columns::decode_reply(&signature, &header, &data, &layout).is_err());
        }
        // An error or other values, each of which can be read, but no panic.
        let mut damaged = data.to_vec();
        if let Some((at, value)) = damage {
            let all = header.buffers.len();
            match at.index(all + 2) {
                at if at < all => header.buffers[at] = value,
                at => header.dictionaries[at - all] = value,
            }
        }
        let size = damaged.len();
        bytes.iter().for_each(|(at, byte)| damaged[at.index(size)] = *byte);
        if let Ok(read) = columns::decode_reply(&signature, &header, &Buffer::from(damaged), &layout) {
            text_of(&Type::Text, &arrow_cast::cast(read.column(0), &DataType::Utf8).unwrap());
        }
    }

    #[test]
    fn parquet_files_give_back_what_they_took((ty, column) in any_column()) {
        let Some((signature, file)) = through_parquet(&ty, &column) else { return Ok(()) };
        let read = parquet::decode_reply(&signature, column.len(), &Buffer::from(file)).unwrap();
        prop_assert_eq!(text_of(&ty, read.column(0)), text_of(&ty, &column));
        prop_assert_eq!(read.column(0).data_type(), &ty.data_type());
    }

    #[test]
    fn parquet_reader_survives_damage(
        (ty, column) in any_column(),
        bytes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in option::of(any::<prop::sample::Index>()),
    ) {
        let Some((signature, mut file)) = through_parquet(&ty, &column) else { return Ok(()) };
        let size = file.len();
        bytes.iter().for_each(|(at, byte)| file[at.index(size)] = *byte);
        file.truncate(end.map_or(size, |end| end.index(size)));
        if let Ok(read) = parquet::decode_reply(&signature, column.len(), &Buffer::from(file)) {
            text_of(&ty, read.column(0));
        }
    }

    #[test]
    fn frame_reader_survives_anything(mut body in vec(any::<u8>(), 0..64), length in option::of(0..80_u8)) {
        if let (Some(first), Some(length)) = (body.get_mut(..4), length) {
            first.copy_from_slice(&[length, 0, 0, 0]);
        }
        if let Ok((header, _)) = columns::read_frame::<columns::ReplyHeader>(&body) {
            header.extent();
        }
    }

    #[test]
    fn json_gives_back_what_it_took((ty, column) in any_column()) {
        let mut text = String::new();
        json::encode_column(&mut text, &ty, &column);
        let values: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let read = json::decode_column(&ty, &values).unwrap();
        let mut again = String::new();
        json::encode_column(&mut again, &ty, &read);
        prop_assert_eq!(&again, &text);
        // NaN is not equal to itself; the texts above are.
        if !matches!(ty, Type::Float4 | Type::Float8) {
            prop_assert_eq!(read.to_data(), column.to_data());
        }
    }

    #[test]
    fn json_reader_survives_anything(text in "\\PC*", ty in any_type()) {
        if let Ok(values) = serde_json::from_str::<Vec<serde_json::Value>>(&text) {
            let _ = json::decode_column(&ty, &values);
        }
    }

    #[test]
    fn arrow_reader_survives_damage((ty, column) in any_column(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let schema = Arc::new(arrow_schema::Schema::new(vec![ty.field("x")]));
        let batch = RecordBatch::try_new(schema.clone(), vec![column]).unwrap();
        let mut message = BatchEncoder::default().encode(&batch).unwrap();
        let mut header = message.data_header.to_vec();
        let place = at.index(header.len());
        header[place] = byte;
        message.data_header = header.into();
        // An error or other values, but no panic.
        let _ = decode_batch(&message, schema);
    }
}

#[test]
fn empty_batches_and_batches_without_columns_keep_their_rows() {
    for rows in [0, 3] {
        let schema = Arc::new(arrow_schema::Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), vec![], &options).unwrap();
        let message = BatchEncoder::default().encode(&batch).unwrap();
        assert_eq!(decode_batch(&message, schema).unwrap().num_rows(), rows);
    }
}

/// `golden/call.json` is what a call of every type looks like; the templates' servers are tested against the same file.
#[test]
fn json_call_is_the_golden_one() {
    let golden = include_str!("golden/call.json").trim_end();
    let whole: serde_json::Value = serde_json::from_str(golden).unwrap();
    let mut arguments = Vec::new();
    let mut columns = Vec::new();
    let given = whole["columns"].as_array().unwrap();
    let types = types();
    assert_eq!(given.len(), types.len());
    for (ty, values) in types.iter().zip(given) {
        arguments.push(Argument { name: ty.to_string(), ty: ty.clone() });
        columns.push(json::decode_column(ty, values.as_array().unwrap()).unwrap());
    }
    let signature = Signature::scalar("f", arguments, Type::Bool);
    let columns = RecordBatch::try_new(signature.call_schema(), columns).unwrap();
    assert_eq!(json::encode_call(&signature, &CallBatch::new(7, columns), ""), golden);
}

#[test]
fn parquet_files_that_lie_are_refused() {
    use ::parquet::arrow::ArrowWriter;

    let signature = Signature::scalar("f", vec![Argument { name: "x".to_string(), ty: Type::Int8 }], Type::Int8);
    let write = |columns: Vec<ArrayRef>| {
        let names = ["x", "y"];
        let batch = RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        file
    };
    let read = |file: Vec<u8>| parquet::decode_reply(&signature, 2, &Buffer::from(file));
    let numbers = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let list =
        Arc::new(ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>(vec![Some(vec![Some(1)]); 2]));
    assert_eq!(read(write(vec![numbers(vec![7, 8])])).unwrap().column(0), &numbers(vec![7, 8]));
    // A narrower type is converted, as in the other forms.
    let narrow = Arc::new(Int16Array::from(vec![7, 8]));
    assert_eq!(read(write(vec![narrow])).unwrap().column(0), &numbers(vec![7, 8]));
    for (fact, file) in [
        ("3 rows, not 2", write(vec![numbers(vec![1, 2, 3])])),
        ("other columns", write(vec![numbers(vec![1, 2]), numbers(vec![1, 2])])),
        ("other columns", write(vec![list])),
        ("malformed", b"PAR1".to_vec()),
        ("malformed", Vec::new()),
    ] {
        let said = read(file).unwrap_err();
        assert!(said.contains(fact), "{fact}: {said}");
    }
    // What has no form in files is refused before it is sent.
    for ty in types() {
        let signature = Signature::scalar("f", vec![Argument { name: "x".to_string(), ty: ty.clone() }], Type::Bool);
        let is_flat = !ty.data_type().is_nested() && ty != Type::Interval;
        assert_eq!(parquet::check_types(&signature).is_ok(), is_flat, "{ty}");
    }
    assert!(parquet::check_types(&Signature::scalar("f", vec![], Type::Bool)).is_err());
}
