//! A file's rows, Parquet or Arrow, as batches of the types of `docs/types.md`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use udf_client::file_rows::Message;
use udf_codec::adapt::adapt;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

/// Most rows that are decoded at a time, and bytes that these should have.
const MOST_ROWS: usize = 8192;
const MOST_BYTES: usize = 8 << 20;
/// What the files begin with.
const PARQUET: &[u8] = b"PAR1";
const ARROW: &[u8] = b"ARROW1";

/// Says what a file has, from its columns to its end.
///
/// # Errors
/// It is of another kind, broken, or has columns that are of no type of `docs/types.md`; or what `send` returns.
pub(super) fn decode(file: File, mut send: impl FnMut(Message) -> Result<()>) -> Result<()> {
    // The library has thought of broken files, but not of all.
    let decode = || decode_kind(Positioned { file: Arc::new(file), at: 0 }, &mut send);
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(broken("its parts do not fit together")))
}

fn decode_kind(file: Positioned, send: &mut impl FnMut(Message) -> Result<()>) -> Result<()> {
    let mut start = [0; ARROW.len()];
    let length = file.file.read_at(&mut start, 0).map_err(broken)?;
    match &start[..length] {
        start if start.starts_with(PARQUET) => {
            // Types that the file says of itself beside its own would be taken on trust.
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(broken)?;
            let schema = builder.schema().clone();
            let groups = builder.metadata().row_groups().iter();
            let row_bytes = groups.map(|group| group.total_byte_size() / group.num_rows().max(1)).max().unwrap_or(0);
            let rows = MOST_BYTES / usize::try_from(row_bytes).unwrap_or(0).max(1);
            let reader = builder.with_batch_size(rows.clamp(1, MOST_ROWS)).build().map_err(broken)?;
            send_all(&schema, reader, send)
        }
        ARROW => {
            let reader = FileReader::try_new(file, None).map_err(broken)?;
            send_all(&reader.schema(), reader, send)
        }
        _ => Err(Error::new(Kind::OutOfRange, "It is neither a Parquet nor an Arrow IPC file.")),
    }
}

fn send_all(
    found: &Schema,
    batches: impl Iterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    send: &mut impl FnMut(Message) -> Result<()>,
) -> Result<()> {
    let fields = found.fields().iter().map(|field| Ok(type_of(field)?.field(field.name())));
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Result<Vec<Field>>>()?));
    send(Message::Schema(schema.as_ref().clone()))?;
    // Few of wide ones, which are all in memory at a time.
    let (mut rows, mut next_rows) = (0, 1);
    for batch in batches {
        let batch = batch.map_err(broken)?;
        // Arrow files have batches of any size, and a dictionary's long text may stand in many rows.
        let mut start = 0;
        while start < batch.num_rows() {
            let part = batch.slice(start, next_rows.min(batch.num_rows() - start));
            start += part.num_rows();
            let columns = schema.fields().iter().zip(part.columns()).map(|(field, column)| {
                adapt(column, field.data_type()).map_err(|fact| {
                    let (first, last) = (rows + 1, rows + part.num_rows() as u64);
                    let place = format!("Rows {first} to {last} of column \"{}\" cannot be read.", field.name());
                    Error::new(Kind::OutOfRange, place).with_detail(fact)
                })
            });
            let options = RecordBatchOptions::new().with_row_count(Some(part.num_rows()));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            let part = RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(broken)?;
            Message::of_batch(&part, send)?;
            rows += part.num_rows() as u64;
            let row_bytes = part.get_array_memory_size() / part.num_rows();
            next_rows = (MOST_BYTES / row_bytes.max(1)).min(2 * next_rows).clamp(1, MOST_ROWS);
        }
    }
    send(Message::End(rows))
}

/// The type that a column has in SQL: of a dictionary that of its values.
fn type_of(field: &Field) -> Result<Type> {
    let plain = match field.data_type() {
        DataType::Dictionary(_, values) => field.clone().with_data_type(values.as_ref().clone()),
        _ => field.clone(),
    };
    let refuse = |_| {
        let fact = format!(
            "Column \"{}\" has the Arrow type {}, for which there is no SQL type.",
            field.name(),
            field.data_type()
        );
        Error::new(Kind::UnsupportedType, fact)
    };
    match Type::from_foreign_field(&plain).map_err(refuse)? {
        // PostgreSQL has no other for it.
        Type::DateTime2 => Ok(Type::Text),
        ty => Ok(ty),
    }
}

fn broken(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::OutOfRange, format!("It is broken: {cause}."))
}

/// A file that is read at places of this reader's own: whoever has opened it shares the descriptor's place.
#[derive(Debug, Clone)]
struct Positioned {
    file: Arc<File>,
    at: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Positioned {
    fn seek(&mut self, place: SeekFrom) -> std::io::Result<u64> {
        let place = match place {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(offset) => self.file.metadata()?.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }
}

impl ChunkReader for Positioned {
    type T = Positioned;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Positioned> {
        Ok(Positioned { file: self.file.clone(), at: start })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        // What a file says that it has is no reason to make room for it.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len()) {
            return Err(ParquetError::EOF("a part lies behind its end".to_string()));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}
