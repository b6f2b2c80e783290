//! Batches as Parquet files (`docs/protocol.md` §7): for comparison with the other forms, as systems that exchange files do it.
//!
//! In: a record batch, or a file that nobody has checked. Out: a file, or a record batch that is valid. Files are plain: no
//! compression, for which the library is built without codecs, and no dictionary. What may grow while it is read is bounded:
//! values of variable length are read row by row and counted, and types that nest have no form here, since a few bytes can
//! stand for any number of elements.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::Signature;
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::adapt::adapt;
use crate::unreadable::Unreadable;

/// Refuses a function some of whose values have no form in Parquet files.
pub fn check_types(signature: &Signature) -> Result<()> {
    let types = [signature.call_types(), signature.reply_types()].concat();
    let nested = |ty: &&Type| matches!(ty, Type::Interval | Type::Array(_) | Type::Range(_) | Type::Composite(_));
    let fact = match types.iter().find(nested) {
        Some(ty) => format!("Values of type {ty} cannot travel in Parquet files."),
        None if signature.call_types().is_empty() => "A Parquet file has at least one column.".to_string(),
        None => return Ok(()),
    };
    Err(Error::invalid_definition(format!("function \"{}\" cannot be called over parquet", signature.function))
        .with_detail(fact)
        .with_hint("Choose another transport."))
}

/// The file of a batch whose types were checked.
pub fn encode(batch: &RecordBatch) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(batch.num_rows().max(1)))
        .build();
    let mut file = Vec::new();
    let write = || {
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties))?;
        writer.write(batch)?;
        writer.close()
    };
    write().expect("files in memory take every value of the types that were checked");
    file
}

/// Reads a reply of so many rows as `signature` says. The error says what does not fit.
pub fn decode_reply(signature: &Signature, rows: usize, file: &Buffer) -> std::result::Result<RecordBatch, String> {
    decode_reply_within(signature, rows, file, MAX_MESSAGE_BYTES).map_err(|unreadable| match unreadable {
        Unreadable::Misfit(fact) => fact,
        Unreadable::TooLarge => "The reply is larger than it says.".to_string(),
    })
}

/// The same of a reply whose columns may have `most` bytes.
pub fn decode_reply_within(
    signature: &Signature,
    rows: usize,
    file: &Buffer,
    most: usize,
) -> std::result::Result<RecordBatch, Unreadable> {
    // The library has thought of broken files, but not of liars.
    let read = catch_unwind(AssertUnwindSafe(|| read_file(signature, rows, Bytes::from_owner(file.clone()), most)));
    match read {
        Ok(Ok(Some(batch))) => Ok(batch),
        Ok(Ok(None)) => Err(Unreadable::TooLarge),
        Ok(Err(cause)) => Err(format!("The reply is malformed: {cause}.").into()),
        Err(_) => Err("The reply is malformed: its file is broken.".to_string().into()),
    }
}

/// None if the columns would have more than `most` bytes.
fn read_file(
    signature: &Signature,
    rows: usize,
    file: Bytes,
    most: usize,
) -> std::result::Result<Option<RecordBatch>, String> {
    let types = signature.reply_types();
    let fields: Vec<_> = types.iter().map(|ty| ty.field(&signature.function)).collect();
    let schema = Arc::new(Schema::new(fields));
    // Types that a file says of itself would be taken on trust.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(say)?;
    let metadata = builder.metadata();
    if usize::try_from(metadata.file_metadata().num_rows()) != Ok(rows) {
        return Err(format!("its file has {} rows, not {rows}", metadata.file_metadata().num_rows()));
    }
    let columns = builder.schema().fields();
    if columns.len() != types.len() || columns.iter().any(|field| field.data_type().is_nested()) {
        return Err("its file has other columns than the function returns".to_string());
    }
    // As the file has them: a dictionary's long text may stand in many rows, whatever it is to become.
    let has_fixed_width = columns.iter().all(|field| field.data_type().primitive_width().is_some());
    let batch_rows = if has_fixed_width { rows.clamp(1, u16::MAX as usize) } else { 1 };
    let (mut batches, mut read, mut bytes) = (Vec::new(), 0, 0);
    for batch in builder.with_batch_size(batch_rows).build().map_err(say)? {
        let batch = typed(&schema, &batch.map_err(say)?)?;
        read += batch.num_rows();
        bytes += batch.get_array_memory_size() + size_of::<RecordBatch>();
        if read > rows {
            return Err("its file is larger than it says".to_string());
        }
        if bytes > most {
            return Ok(None);
        }
        batches.push(batch);
    }
    if read < rows {
        return Err(format!("its file ends after {read} rows"));
    }
    concat_batches(&schema, &batches).map(Some).map_err(say)
}

/// A batch with the types of the function instead of the file's.
fn typed(schema: &SchemaRef, batch: &RecordBatch) -> std::result::Result<RecordBatch, String> {
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| adapt(column, field.data_type()));
    RecordBatch::try_new(schema.clone(), columns.collect::<std::result::Result<_, _>>()?).map_err(say)
}

fn say(cause: impl std::fmt::Display) -> String {
    cause.to_string()
}
