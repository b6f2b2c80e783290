//! Batches as Parquet files (`docs/protocol.md` §7): for comparison with the other forms, as systems that exchange files do it.
//!
//! In: a record batch, or a file that nobody has checked. Out: a file, or a record batch that is valid. Files are plain: no
//! compression and no dictionary. What may grow while it is read is bounded:
//! values of variable length are read row by row and counted, pages have no more values than rows, plain or from a dictionary,
//! and types that nest have no form here, since a few bytes can stand for any number of elements.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::serialized_reader::SerializedPageReader;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::Signature;
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::adapt::{adapt, check_type};
use crate::unreadable::Unreadable;

/// Longest metadata of a file, in bytes: the library makes room for as many row groups as these could be.
const MAX_METADATA_BYTES: usize = 256 << 10;

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
        // Some of the library's texts are sentences, and some are not.
        Ok(Err(cause)) => Err(format!("The reply is malformed: {}.", cause.trim_end_matches('.')).into()),
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
    let ending =
        file.last_chunk::<8>().and_then(|ending| ending.first_chunk()).map(|length| u32::from_le_bytes(*length));
    if ending.is_none_or(|length| length as usize > MAX_METADATA_BYTES) {
        return Err("its file's metadata is too long, or missing".to_string());
    }
    // Types that a file says of itself would be taken on trust.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file.clone(), options).map_err(say)?;
    let metadata = builder.metadata();
    if usize::try_from(metadata.file_metadata().num_rows()) != Ok(rows) {
        return Err(format!("its file has {} rows, not {rows}", metadata.file_metadata().num_rows()));
    }
    let columns = builder.schema().fields();
    if columns.len() != types.len() || columns.iter().any(|field| field.data_type().is_nested()) {
        return Err("its file has other columns than the function returns".to_string());
    }
    let file = Arc::new(file);
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        check_pages(&file, chunk, rows)?;
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

/// Refuses pages of more values than there are rows, and encodings of which a few bytes may stand for any number of values: the
/// library makes room for what a page says that it has.
fn check_pages(file: &Arc<Bytes>, chunk: &ColumnChunkMetaData, rows: usize) -> std::result::Result<(), String> {
    if chunk.compression() != Compression::UNCOMPRESSED {
        return Err(format!("its values are compressed by {}", chunk.compression()));
    }
    let mut pages = SerializedPageReader::new(file.clone(), chunk, rows, None).map_err(say)?;
    while let Some(page) = pages.get_next_page().map_err(say)? {
        let is_known = match (&page, page.encoding()) {
            (_, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) => true,
            (Page::DictionaryPage { .. }, _) => false,
            // Of booleans, and places in a dictionary.
            (_, Encoding::RLE | Encoding::RLE_DICTIONARY) => true,
            _ => false,
        };
        if !is_known {
            return Err(format!("its values are encoded as {}", page.encoding()));
        }
        if page.num_values() as usize > rows {
            return Err("its file is larger than it says".to_string());
        }
    }
    Ok(())
}

/// A batch with the types of the function instead of the file's.
fn typed(schema: &SchemaRef, batch: &RecordBatch) -> std::result::Result<RecordBatch, String> {
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
        check_type(column.data_type(), field.data_type())?;
        adapt(column, field.data_type())
    });
    RecordBatch::try_new(schema.clone(), columns.collect::<std::result::Result<_, _>>()?).map_err(say)
}

fn say(cause: impl std::fmt::Display) -> String {
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;
    use udf_types::types::Type;

    fn file_of(texts: Vec<&str>, properties: WriterProperties) -> Buffer {
        file_of_column(Arc::new(StringArray::from(texts)), properties)
    }

    fn file_of_column(column: ArrayRef, properties: WriterProperties) -> Buffer {
        let batch = RecordBatch::try_from_iter_with_nullable([("f", column, true)]).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        file.into()
    }

    #[test]
    fn numbers_are_no_times() {
        let read = |ty| {
            let file = file_of_column(Arc::new(Int64Array::from(vec![1])), WriterProperties::default());
            decode_reply(&Signature::scalar("f", Vec::new(), ty), 1, &file)
        };
        assert!(read(Type::Int4).is_ok());
        for ty in [Type::Time, Type::Date, Type::Timestamp, Type::Bytea] {
            let fact = read(ty.clone()).unwrap_err();
            assert!(fact.contains("Values of Int64 do not fit") && !fact.ends_with(".."), "{ty}: {fact}");
        }
    }

    #[test]
    fn compressed_files_are_refused() {
        let signature = Signature::scalar("f", Vec::new(), Type::Text);
        for codec in [Compression::SNAPPY, Compression::LZ4_RAW, Compression::ZSTD(Default::default())] {
            let properties = WriterProperties::builder().set_compression(codec).build();
            let fact = decode_reply(&signature, 1, &file_of(vec!["a"], properties)).unwrap_err();
            assert!(fact.contains("compressed by"), "{fact}");
        }
    }

    #[test]
    fn pages_that_stand_for_more_than_they_are_are_refused() {
        let signature = Signature::scalar("f", Vec::new(), Type::Text);
        let read = |texts: &[&str], properties: WriterProperties| {
            decode_reply(&signature, texts.len(), &file_of(texts.to_vec(), properties))
        };
        let plain = || WriterProperties::builder().set_dictionary_enabled(false);
        let texts = ["a", "", "bc"];
        for properties in [plain(), WriterProperties::builder()] {
            assert_eq!(
                read(&texts, properties.build()).unwrap().column(0).as_ref(),
                &StringArray::from(texts.to_vec())
            );
        }
        // Each announces how many lengths it has, and needs no bytes for them.
        for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            let fact = read(&texts, plain().set_encoding(encoding).build()).unwrap_err();
            assert!(fact.contains("encoded as DELTA"), "{fact}");
        }
        // Metadata that could be of millions of row groups.
        let mut file = file_of(texts.to_vec(), plain().build()).to_vec();
        let ending = file.split_off(file.len() - 8);
        file.splice(4..4, vec![0; 1 << 20]);
        file.extend_from_slice(&(1_u32 << 20).to_le_bytes());
        file.extend_from_slice(&ending[4..]);
        let fact = decode_reply(&signature, 3, &file.into()).unwrap_err();
        assert!(fact.contains("metadata is too long"), "{fact}");
        assert!(decode_reply(&signature, 3, &Buffer::from(b"PAR1")).is_err());
    }
}
