//! Replies of servers, in every form.

use arbitrary::{Result, Unstructured};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_schema::{Field, Schema};
use serde_json::{Value, json};
use udf_client::transport::fuzzing;
use udf_codec::arrow_ipc::{BatchEncoder, decode_described_schema, decode_schema, encode_schema};
use udf_codec::batch::CallBatch;
use udf_codec::columns::{Layout, ReplyHeader, decode_call, decode_reply, inline_body, read_frame};
use udf_codec::json::encode_column;
use udf_codec::json_reply::{Columns, Reply};
use udf_codec::parquet as parquet_codec;
use udf_codec::unreadable::Unreadable;
use udf_project::dialect::Dialect;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;

use crate::generate::{batch, change, check_valid, column, foreign_column, foreign_type, signature};
use crate::memory::{LIMIT, within};

/// What the cases themselves, and errors, may take beside a reply.
const SLACK: usize = 256 << 10;
const KINDS: [FunctionKind; 2] = [FunctionKind::Scalar, FunctionKind::Table];

/// The result of something that an input may be too short for.
fn done(_: Result<()>) {}

fn call_of(signature: &Signature, rows: usize) -> CallBatch {
    let columns = signature.call_types().iter().map(|ty| arrow_array::new_null_array(&ty.data_type(), rows)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let columns = RecordBatch::try_new_with_options(signature.call_schema(), columns, &options);
    CallBatch::new(7, columns.expect("columns without values have any type"))
}

pub fn flight_reply(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let signature = signature(u, &KINDS)?;
        let (rows, is_foreign) = (u.int_in_range(0..=40)?, u.arbitrary()?);
        let call = call_of(&signature, rows);
        let types = signature.reply_types();
        let (mut messages, expected) = match u.int_in_range(0..=2)? {
            0 => {
                let message = |u: &mut Unstructured<'_>| {
                    let (header, body) = (u.arbitrary::<&[u8]>()?.to_vec(), u.arbitrary::<&[u8]>()?.to_vec());
                    Ok(FlightData { data_header: header.into(), data_body: body.into(), ..FlightData::default() })
                };
                ([message(u)?, message(u)?], None)
            }
            1 => {
                let mut columns = Vec::new();
                for _ in &types {
                    let found = foreign_type(u, 2)?;
                    let Some(column) = foreign_column(u, &found, rows)? else { return Ok(()) };
                    columns.push((Field::new("", column.data_type().clone(), true), column));
                }
                let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
                let Ok(batch) = RecordBatch::try_new(Schema::new(fields).into(), columns) else { return Ok(()) };
                (messages_of(&batch), None)
            }
            _ => {
                let batch = batch(u, &types, rows)?;
                (messages_of(&batch), Some(batch))
            }
        };
        let mut is_changed = false;
        for message in &mut messages {
            let (mut header, mut body) = (message.data_header.to_vec(), message.data_body.to_vec());
            is_changed |= change(u, &mut header, 4)? | change(u, &mut body, 4)?;
            (message.data_header, message.data_body) = (header.into(), body.into());
        }
        let most = LIMIT / 4 * 3;
        let read = within(LIMIT, || fuzzing::flight_reply(&signature, is_foreign, &call, &messages, most));
        if let Ok(read) = &read {
            check_valid(read);
            let is_right = |(field, ty): (&std::sync::Arc<Field>, &Type)| field.data_type() == &ty.data_type();
            assert!(read.schema().fields().iter().zip(&types).all(is_right));
            assert!(signature.kind != FunctionKind::Scalar || read.num_rows() == rows);
        }
        if let (Some(expected), false, FunctionKind::Scalar) = (expected, is_changed, signature.kind) {
            assert_eq!(read.expect("a right reply is read").columns(), expected.columns());
        }
        let [_, message] = messages;
        let mut bytes = fuzzing::flight_bytes(message.clone());
        let is_changed = change(u, &mut bytes, 4)?;
        let read = within(LIMIT, || fuzzing::flight_message(&bytes));
        if let Some((read, asides)) = &read {
            let columns = if read.data_header.is_empty() { 0 } else { read.data_header.len() + read.data_body.len() };
            assert_eq!((columns + asides, &read.flight_descriptor), (bytes.len(), &None));
        }
        if !is_changed {
            assert_eq!(read.expect("what is as it was written is read").0, message);
        }
        Ok(())
    })());
}

fn messages_of(batch: &RecordBatch) -> [FlightData; 2] {
    let message = BatchEncoder::default().encode(batch).expect("batches can be encoded");
    [encode_schema(&batch.schema()), message]
}

/// What a server says of a function, and calls as it wants them.
pub fn flight_schema(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let (total, is_foreign) =
            (if u.arbitrary()? { u.int_in_range(-1..=4)? } else { u.arbitrary()? }, u.arbitrary()?);
        let schema = match u.int_in_range(0..=2)? {
            0 => None,
            1 => {
                let count = u.int_in_range(0..=4)?;
                let field = |_| Ok(Field::new(*u.choose(&["x", "row", ""])?, foreign_type(u, 2)?, u.arbitrary()?));
                Some(Schema::new((0..count).map(field).collect::<Result<Vec<_>>>()?))
            }
            _ => {
                let signature = signature(u, &KINDS)?;
                let mut fields = signature.call_schema().fields().to_vec();
                fields.extend(signature.reply_types().iter().map(|ty| ty.field("row").into()));
                Some(Schema::new(fields))
            }
        };
        let mut header = match &schema {
            Some(schema) => encode_schema(schema).data_header.to_vec(),
            None => u.arbitrary::<&[u8]>()?.to_vec(),
        };
        change(u, &mut header, 6)?;
        let message = FlightData { data_header: header.clone().into(), ..FlightData::default() };
        let read = within(LIMIT, || decode_schema(&message));
        // The same, as an answer to GetFlightInfo has it.
        let framed = [&[0xff; 4], &(header.len() as u32).to_le_bytes()[..], &header].concat();
        let described = within(LIMIT, || decode_described_schema(&framed));
        assert_eq!(read.as_deref().ok(), described.as_ref().ok());
        let Ok(schema) = read else { return Ok(()) };
        let described = within(LIMIT, || fuzzing::flight_signature(&schema, total, is_foreign));
        let Ok((signature, inputs)) = described else { return Ok(()) };
        assert_eq!(signature.arguments.len(), inputs);
        let _ = within(LIMIT, || signature.to_string());
        let rows = u.int_in_range(0..=8)?;
        let columns = batch(u, &signature.call_types(), rows)?;
        if is_foreign && signature.kind == FunctionKind::Scalar {
            let arguments = Schema::new(schema.fields()[..inputs].to_vec());
            if let Ok(adapted) = within(LIMIT, || fuzzing::foreign_call(&columns, arguments)) {
                check_valid(&adapted);
                BatchEncoder::default().encode(&adapted).expect("a batch can be encoded");
            }
        }
        // The schema of a function that is declared so can be sent.
        let _ = within(LIMIT, || FlightData::from(SchemaAsIpc::new(&signature.call_schema(), &Default::default())));
        Ok(())
    })());
}

pub fn json_reply(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let signature = signature(u, &KINDS)?;
        let rows = u.int_in_range(0..=40)?;
        let types = signature.reply_types();
        let (mut body, expected) = match u.arbitrary()? {
            false => (u.arbitrary::<&[u8]>()?.to_vec(), None),
            true => {
                let batch = batch(u, &types, rows)?;
                (json_of(&types, &batch).into_bytes(), Some(batch))
            }
        };
        let is_changed = change(u, &mut body, 4)?;
        let wanted = Some(rows).filter(|_| signature.kind == FunctionKind::Scalar);
        // The columns may have a quarter, as the text may.
        let most = LIMIT / 4;
        let mut left = most;
        let read =
            within(LIMIT, || Reply::read(&body).map_err(Unreadable::from)?.columns(&signature, wanted, &mut left));
        assert!(most - left <= fuzzing::most_json_bytes(&signature, body.len()), "{}", most - left);
        let call = call_of(&signature, rows);
        if let Ok(Columns::Read(read)) = &read {
            check_valid(read);
            if signature.kind == FunctionKind::Scalar {
                assert!(read.num_rows() <= rows);
            }
            let _ = fuzzing::check_reply(&signature, &call, read);
            // What was read can be written and read again.
            let again = json_of(&types, read);
            let Ok(Columns::Read(again)) =
                Reply::read(again.as_bytes()).unwrap().columns(&signature, None, &mut { LIMIT })
            else {
                panic!("{again}");
            };
            assert_eq!(again.columns(), read.columns());
        }
        if let (Some(expected), false) = (expected, is_changed) {
            let Ok(Columns::Read(read)) = read else { panic!("a right reply is read") };
            assert_eq!(read.columns(), expected.columns());
        }
        Ok(())
    })());
}

fn json_of(types: &[Type], batch: &RecordBatch) -> String {
    let columns = types.iter().zip(batch.columns()).map(|(ty, column)| {
        let mut text = String::new();
        encode_column(&mut text, ty, column);
        text
    });
    format!("{{\"batch\":7,\"micros\":1,\"columns\":[{}]}}", columns.collect::<Vec<_>>().join(","))
}

const DIALECTS: [Dialect; 10] = [
    Dialect::Snowflake,
    Dialect::Singlestore,
    Dialect::Redshift,
    Dialect::Bigquery,
    Dialect::Mlflow,
    Dialect::MlflowRecords,
    Dialect::MlflowInputs,
    Dialect::MlflowSplit,
    Dialect::Array,
    Dialect::AzureMl,
];

pub fn dialect_reply(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let dialect = *u.choose(&DIALECTS)?;
        let signature = signature(u, &[FunctionKind::Scalar])?;
        let rows = u.int_in_range(0..=20)?;
        let calls = CallBatch::new(7, batch(u, &signature.call_types(), rows)?);
        let calls = RecordBatch::try_new_with_options(
            signature.call_schema(),
            calls.columns.columns().to_vec(),
            &RecordBatchOptions::new().with_row_count(Some(rows)),
        );
        let calls = CallBatch::new(7, calls.expect("the columns have the types"));
        let _ = within(LIMIT, || fuzzing::dialect_request(dialect, &signature, &calls));
        let mut body = match u.arbitrary()? {
            false => u.arbitrary::<&[u8]>()?.to_vec(),
            true => {
                let results = column(u, &signature.result, rows)?;
                let mut text = String::new();
                encode_column(&mut text, &signature.result, &results);
                let results: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
                let body = match dialect {
                    Dialect::Snowflake | Dialect::Singlestore => {
                        let rows = results.into_iter().enumerate().map(|(number, value)| json!([number, value]));
                        json!({ "data": rows.collect::<Vec<_>>() })
                    }
                    Dialect::Redshift => json!({"success": true, "results": results}),
                    Dialect::Bigquery => json!({ "replies": results }),
                    Dialect::Mlflow | Dialect::MlflowRecords | Dialect::MlflowInputs => json!({"predictions": results}),
                    _ => Value::from(results),
                };
                // Some frameworks write JSON into a string of JSON.
                let inner = u.int_in_range(0..=3)?;
                (0..inner).fold(body.to_string(), |text, _| Value::from(text).to_string()).into_bytes()
            }
        };
        change(u, &mut body, 4)?;
        let status = if u.ratio(1, 8)? { *u.choose(&[400, 429, 500, 503])? } else { 200 };
        let most = LIMIT / 4;
        let read = within(LIMIT, || fuzzing::dialect_reply(dialect, &signature, rows, status, &body, most));
        if let Ok(read) = read {
            check_valid(&read);
            assert_eq!((read.num_rows(), read.num_columns()), (rows, 1));
            assert_eq!(read.column(0).data_type(), &signature.result.data_type());
        }
        Ok(())
    })());
}

pub fn error_reply(input: &[u8]) {
    let (status, body) = input.split_at(input.len().min(1));
    let status = 400 + u16::from(status.first().copied().unwrap_or_default());
    let error = within(LIMIT + 8 * input.len(), || fuzzing::http_error(status, body));
    assert!(error.to_string().len() < 256 << 10, "errors are short");
}

pub fn columns(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let mut signature = signature(u, &KINDS)?;
        let rows = u.int_in_range(0..=40)?;
        // So that results may be arguments.
        if let (Some(argument), true) = (signature.arguments.first(), u.arbitrary()?) {
            signature.result = argument.ty.clone();
        }
        let calls = batch(u, &signature.call_types(), rows)?;
        let call_layout = Layout::of(&signature.call_types(), &calls);
        // Calls come back as they went, however much in front of them is cut off.
        let framed = inline_body(&json!({ "buffers": call_layout.places() }), &call_layout);
        let (header, data): (Value, _) = read_frame(&framed).expect("it is a frame");
        let places: Vec<usize> = serde_json::from_value(header["buffers"].clone()).expect("they are numbers");
        let read = decode_call(&signature, rows, &places, &Buffer::from(data)).expect("calls are right");
        assert_eq!(read.columns(), calls.columns());

        let types = signature.reply_types();
        let reply = batch(u, &types, rows)?;
        let layout = Layout::of(&types, &reply);
        let mut places = layout.places().to_vec();
        let is_changed = u.arbitrary()?;
        let mut aliases = Vec::new();
        let mut dictionaries = Vec::new();
        let mut said_rows = rows;
        if is_changed {
            if u.ratio(1, 4)? {
                said_rows = if u.arbitrary()? { u.arbitrary()? } else { u.int_in_range(0..=100)? };
            }
            for _ in 0..u.int_in_range(0..=3)? {
                if places.is_empty() {
                    break;
                }
                let place = u.int_in_range(0..=places.len() - 1)?;
                match u.int_in_range(0..=4)? {
                    0 => places[place] = u.arbitrary()?,
                    1 => places[place] = usize::from(u.arbitrary::<u16>()?) * 8,
                    2 => places[place] = *u.choose(call_layout.places()).unwrap_or(&0),
                    3 => drop(places.remove(place)),
                    _ => places.insert(place, u.int_in_range(0..=64)?),
                }
            }
            for _ in 0..u.int_in_range(0..=3)? {
                aliases.push(u.int_in_range(0..=places.len() / 2 + 1)?);
            }
            for _ in 0..u.int_in_range(0..=3)? {
                dictionaries.push(if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=3)? });
            }
        }
        let header = json!({ "rows": said_rows, "buffers": places, "aliases": aliases, "dictionaries": dictionaries });
        let mut body = inline_body(&header, &layout);
        let is_changed = is_changed | change(u, &mut body, 3)?;
        let read = within(LIMIT, || {
            let (header, data): (ReplyHeader, _) = read_frame(&body)?;
            let _ = header.extent();
            decode_reply(&signature, &header, &Buffer::from(data), &call_layout).map(|read| (header, read))
        });
        if let Ok((header, read)) = &read {
            check_valid(read);
            assert_eq!(read.num_rows(), header.rows);
            let call = CallBatch { takes_dictionaries: true, ..CallBatch::new(7, calls) };
            if signature.kind == FunctionKind::Scalar && fuzzing::check_reply(&signature, &call, read).is_ok() {
                assert_eq!(read.num_rows(), rows);
            }
        }
        if !is_changed {
            assert_eq!(read.expect("a right reply is read").1.columns(), reply.columns());
        }
        Ok(())
    })());
}

pub fn parquet(input: &[u8]) {
    done((|| {
        let u = &mut Unstructured::new(input);
        let signature = Signature::scalar("f", Vec::new(), crate::generate::ty(u, 0)?);
        if signature.result == Type::Interval {
            return Ok(());
        }
        let rows = u.int_in_range(0..=40)?;
        let (mut file, expected) = match u.int_in_range(0..=3)? {
            0 => (u.arbitrary::<&[u8]>()?.to_vec(), None),
            _ => {
                let batch = batch(u, &signature.reply_types(), rows)?;
                (parquet_codec::encode(&batch), Some(batch))
            }
        };
        let is_changed = change(u, &mut file, 4)?;
        let read = within(LIMIT + SLACK, || {
            fuzzing::parquet_reply(&signature, rows, &file, (LIMIT / 4 * 3).saturating_sub(file.len()) / 2)
        });
        if let Ok(read) = &read {
            check_valid(read);
            assert_eq!(read.num_rows(), rows);
            assert_eq!(read.column(0).data_type(), &signature.result.data_type());
        }
        if let (Some(expected), false) = (expected, is_changed) {
            assert_eq!(read.expect("a right file is read").columns(), expected.columns());
        }
        Ok(())
    })());
}
