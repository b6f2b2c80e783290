//! Nanoseconds per value of each form in which columns travel, written and read, by type. `bench/codecs/run.py` calls this, and
//! makes a table of the lines. Argument: rounds.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_buffer::Buffer;
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch};
use udf_codec::batch::CallBatch;
use udf_codec::{columns, json, json_reply, parquet};
use udf_types::signature::{Argument, Signature};
use udf_types::types::Type;

const ROWS: usize = 10_000;
const REPEATS: u32 = 20;

fn column_of(ty: &Type) -> ArrayRef {
    let rows = 0..ROWS as i64;
    match ty {
        Type::Bool => Arc::new(rows.map(|i| Some(i % 3 == 0)).collect::<BooleanArray>()),
        Type::Int8 => Arc::new(Int64Array::from_iter_values(rows.map(|i| i * 1_000_003))),
        Type::Float8 => Arc::new(Float64Array::from_iter_values(rows.map(|i| (i * 31 % 1009) as f64 / 1009.0))),
        Type::Timestamp => Arc::new(TimestampMicrosecondArray::from_iter_values(rows.map(|i| i * 1_000_000_007))),
        _ => Arc::new(StringArray::from_iter_values(rows.map(|i| format!("a text of {i:010}")))),
    }
}

/// Nanoseconds per value of `work`.
fn nanoseconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..REPEATS {
        black_box(work());
    }
    start.elapsed().as_nanos() as f64 / f64::from(REPEATS) / ROWS as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds --bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let rounds: usize = arguments.next().ok_or("how many rounds?")?.parse()?;
    for _ in 0..=rounds {
        for ty in [Type::Bool, Type::Int8, Type::Float8, Type::Timestamp, Type::Text] {
            measure(&ty)?;
        }
    }
    Ok(())
}

/// Prints type, form, nanoseconds to write and to read.
fn measure(ty: &Type) -> Result<(), Box<dyn Error>> {
    let signature = Signature::scalar("f", vec![Argument { name: "x".to_string(), ty: ty.clone() }], ty.clone());
    let batch = RecordBatch::try_new(signature.call_schema(), vec![column_of(ty)])?;
    let call = CallBatch::new(0, batch.clone());
    let report = |form: &str, write: f64, read: f64| println!("{ty} {form} {write} {read}");

    let encode = || {
        let layout = columns::Layout::of(&signature.call_types(), &batch);
        columns::inline_body(&columns::CallHeader::new(&call, &layout, ""), &layout)
    };
    let body = encode();
    let decode = || {
        let (header, data): (columns::ReplyHeader, _) = columns::read_frame(&body).expect("it was just written");
        columns::decode_reply(&signature, &header, &Buffer::from(data), &columns::Layout::default())
    };
    decode().map_err(|cause| format!("{cause:?}"))?;
    report("columns", nanoseconds(encode), nanoseconds(decode));

    let message = BatchEncoder::default().encode(&batch)?;
    decode_batch(&message, batch.schema())?;
    let write = nanoseconds(|| BatchEncoder::default().encode(&batch));
    report("arrow-ipc", write, nanoseconds(|| decode_batch(&message, batch.schema())));

    let file = parquet::encode(&batch);
    parquet::decode_reply(&signature, ROWS, &Buffer::from(file.as_slice()))?;
    let read = nanoseconds(|| parquet::decode_reply(&signature, ROWS, &Buffer::from(file.as_slice())));
    report("parquet", nanoseconds(|| parquet::encode(&batch)), read);

    let text = json::encode_call(&signature, &call, "");
    let decode = || {
        let reply = json_reply::Reply::read(text.as_bytes()).expect("it was just written");
        reply.columns(&signature, Some(ROWS), &mut usize::MAX.clone())
    };
    decode().map_err(|cause| format!("{cause:?}"))?;
    report("json", nanoseconds(|| json::encode_call(&signature, &call, "")), nanoseconds(decode));
    Ok(())
}
