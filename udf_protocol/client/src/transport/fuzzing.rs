//! Readers of foreign bytes, without the connections that bring these, for the fuzzers of `fuzz/`.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::FlightData;
use arrow_schema::Schema;
use http::StatusCode;

use udf_codec::batch::CallBatch;
use udf_codec::unreadable::Unreadable;
use udf_codec::{arrow_ipc, json_reply, parquet};
use udf_project::dialect::Dialect;
use udf_types::signature::Signature;
use udf_types::{Error, Result};

use super::{check, envelope, flight, flight_messages, foreign, status};

/// What a Flight server says of a function that has `total` inputs, by its own count.
pub fn flight_signature(schema: &Schema, total: i64, is_foreign: bool) -> Result<(Signature, usize)> {
    if !is_foreign {
        let inputs = usize::try_from(total).map_err(|_| Error::protocol("f", "no inputs"))?;
        return Ok((Signature::from_schema("f", schema, inputs)?, inputs));
    }
    let inputs = foreign::foreign_inputs(schema, total);
    let first = foreign::first_arrow_udf_schema(schema, total);
    Ok((Signature::from_foreign_schema("f", first.as_ref().unwrap_or(schema), inputs)?, inputs))
}

/// A reply to `call` over Flight, of which no more than `most` bytes may be made.
pub fn flight_reply(
    signature: &Signature,
    is_foreign: bool,
    call: &CallBatch,
    messages: &[FlightData; 2],
    most: usize,
) -> Result<RecordBatch> {
    let schema = arrow_ipc::decode_schema(&messages[0]).map_err(|cause| Error::protocol("f", cause.to_string()))?;
    let (columns, _) = flight::read_columns(signature, is_foreign, &schema, &messages[1], most, most)?;
    check::check_reply(signature, call, &columns)?;
    Ok(columns)
}

/// A message of columns as it goes over the wire.
pub fn flight_bytes(message: FlightData) -> Vec<u8> {
    let mut bytes = Vec::new();
    flight_messages::write(&flight_messages::fields_of(message), &mut bytes);
    bytes
}

/// A message of columns from the wire, and how many of its bytes are none of columns; none if it is not protobuf.
pub fn flight_message(mut bytes: &[u8]) -> Option<(FlightData, usize)> {
    let received = flight_messages::read(&mut bytes)?;
    let asides = received.asides();
    Some((received.message, asides))
}

/// Calls as a foreign server's schema wants them.
pub fn foreign_call(columns: &RecordBatch, schema: Schema) -> std::result::Result<RecordBatch, String> {
    foreign::adapt_columns(columns, Arc::new(schema))
}

/// Whether a reply fits its call.
pub fn check_reply(signature: &Signature, call: &CallBatch, columns: &RecordBatch) -> Result<()> {
    check::check_reply(signature, call, columns)
}

/// A body of a dialect, as the client writes it.
pub fn dialect_request(dialect: Dialect, signature: &Signature, call: &CallBatch) -> String {
    envelope::write_request(dialect, signature, call, "exchange")
}

/// An answer of a dialect to so many rows, whose text and tree may have `most` bytes each.
pub fn dialect_reply(
    dialect: Dialect,
    signature: &Signature,
    rows: usize,
    status: u16,
    body: &[u8],
    most: usize,
) -> Result<RecordBatch> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let text = envelope::text_of(body);
    let may_nest = !matches!(signature.result, udf_types::textual_type!());
    if json_reply::tree_bytes(text.as_bytes(), may_nest) > most {
        return Err(Error::reply_too_large("f", most));
    }
    envelope::read_columns(dialect, signature, rows, status, &text)
}

/// The error of an answer with a status other than 200.
pub fn http_error(status: u16, body: &[u8]) -> Error {
    status::error_of("f", StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), body)
}

/// Bytes that reading a JSON reply of this protocol may take.
pub fn most_json_bytes(signature: &Signature, text: usize) -> usize {
    json_reply::most_bytes(&signature.reply_types(), text)
}

/// A Parquet file of so many rows, whose columns may have `most` bytes.
pub fn parquet_reply(
    signature: &Signature,
    rows: usize,
    file: &[u8],
    most: usize,
) -> std::result::Result<RecordBatch, Unreadable> {
    parquet::decode_reply_within(signature, rows, &Buffer::from(file), most)
}
