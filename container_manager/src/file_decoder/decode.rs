//! A file's rows, Parquet or Arrow, as batches of the types of `docs/types.md`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, TimestampNanosecondType};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::FileReader;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::LogicalType;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::SchemaDescriptor;
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
pub(super) fn decode(file: Positioned, mut send: impl FnMut(Message) -> Result<()>) -> Result<()> {
    // The library has thought of broken files, but not of all.
    let decode = || decode_kind(file, &mut send);
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(broken("its parts do not fit together")))
}

fn decode_kind(file: Positioned, send: &mut impl FnMut(Message) -> Result<()>) -> Result<()> {
    let mut start = [0; ARROW.len()];
    let length = file.file.read_at(&mut start, 0).map_err(broken)?;
    match &start[..length] {
        start if start.starts_with(PARQUET) => decode_parquet(&file, send),
        ARROW => {
            let reader = FileReader::try_new(file, None).map_err(broken)?;
            let mut rows = Rows::new(&reader.schema(), send)?;
            for batch in reader {
                rows.send(&batch.map_err(broken)?)?;
            }
            rows.end()
        }
        _ => Err(Error::new(Kind::OutOfRange, "It is neither a Parquet nor an Arrow IPC file.")),
    }
}

fn decode_parquet(file: &Positioned, send: &mut impl FnMut(Message) -> Result<()>) -> Result<()> {
    // Types that the file says of itself beside its own would be taken on trust.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(file, options).map_err(broken)?;
    let groups = metadata.metadata().row_groups();
    // The library reads by these numbers, and takes what it finds instead.
    let miscounted = || broken("it has other rows than it says");
    let counts = groups.iter().map(|group| u64::try_from(group.num_rows()).ok());
    let counts = counts.collect::<Option<Vec<u64>>>().ok_or_else(miscounted)?;
    let total = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    if total.is_none() || total != u64::try_from(metadata.metadata().file_metadata().num_rows()).ok() {
        return Err(miscounted());
    }
    let old_instants = OldInstants::of(&metadata)?;
    let mut rows = Rows::new(&with_uuids(metadata.schema(), metadata.parquet_schema()), send)?;
    for (i, (group, count)) in groups.iter().zip(counts).enumerate() {
        let row_bytes = u64::try_from(group.total_byte_size()).unwrap_or(0) / count.max(1);
        let batch_rows = MOST_BYTES / usize::try_from(row_bytes).unwrap_or(usize::MAX).max(1);
        let read = |metadata: &ArrowReaderMetadata, columns: ProjectionMask| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(file.clone(), metadata.clone())
                .with_row_groups(vec![i])
                .with_projection(columns)
                .with_batch_size(batch_rows.clamp(1, MOST_ROWS))
                .build()
                .map_err(broken)
        };
        let mut old_instants =
            old_instants.as_ref().map(|old| Ok((old, read(&old.metadata, old.mask())?))).transpose()?;
        let before = rows.sent;
        for batch in read(&metadata, ProjectionMask::all())? {
            let mut batch = batch.map_err(broken)?;
            if let Some((old, micros)) = &mut old_instants {
                batch = old.put_into(&batch, &micros.next().ok_or_else(miscounted)?.map_err(broken)?)?;
            }
            rows.send(&batch)?;
        }
        if rows.sent - before != count {
            return Err(miscounted());
        }
    }
    rows.end()
}

/// The columns with those marked that are UUIDs, which the library takes for bytes.
fn with_uuids(found: &Schema, said: &SchemaDescriptor) -> Schema {
    let fields = found.fields().iter().zip(said.root_schema().get_fields()).map(|(field, said)| {
        match said.get_basic_info().logical_type_ref() {
            Some(LogicalType::Uuid) if *field.data_type() == Type::Uuid.data_type() => {
                Type::Uuid.field(field.name()).with_nullable(field.is_nullable())
            }
            _ => field.as_ref().clone(),
        }
    });
    Schema::new(fields.collect::<Vec<Field>>())
}

/// Columns of type INT96, which has nanoseconds of any day. The library makes 64 bits of them, of nanoseconds or of microseconds, and
/// says neither that there are too many nor that some are lost: both are read, and compared.
struct OldInstants {
    columns: Vec<usize>,
    /// That of a reader to whom they are microseconds.
    metadata: ArrowReaderMetadata,
}

impl OldInstants {
    /// Those of a file, if it has any.
    fn of(metadata: &ArrowReaderMetadata) -> Result<Option<OldInstants>> {
        let leaves = metadata.parquet_schema().columns().iter().enumerate();
        let old = leaves.filter(|(_, leaf)| leaf.physical_type() == parquet::basic::Type::INT96);
        let mut fields = metadata.schema().fields().to_vec();
        let mut columns = Vec::new();
        for (i, leaf) in old {
            let column = metadata.parquet_schema().get_column_root_idx(i);
            let field = &mut fields[column];
            if leaf.path().parts().len() > 1 || leaf.max_rep_level() > 0 {
                let fact =
                    format!("Column \"{}\" has values of the Parquet type INT96 in lists or rows.", field.name());
                return Err(Error::new(Kind::UnsupportedType, fact));
            }
            *field = Arc::new(field.as_ref().clone().with_data_type(Type::Timestamp.data_type()));
            columns.push(column);
        }
        if columns.is_empty() {
            return Ok(None);
        }
        let options =
            ArrowReaderOptions::new().with_skip_arrow_metadata(true).with_schema(Arc::new(Schema::new(fields)));
        let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options).map_err(broken)?;
        Ok(Some(OldInstants { columns, metadata }))
    }

    fn mask(&self) -> ProjectionMask {
        ProjectionMask::roots(self.metadata.parquet_schema(), self.columns.iter().copied())
    }

    /// The batch with microseconds, if these are all of the nanoseconds that it has.
    fn put_into(&self, batch: &RecordBatch, micros: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for (place, micros) in self.columns.iter().zip(micros.columns()) {
            let nanos = columns[*place].as_primitive::<TimestampNanosecondType>().iter();
            let whole = micros.as_primitive::<TimestampMicrosecondType>().iter();
            // Both leave out the same number of times that 64 bits overflow.
            if !nanos.eq(whole.map(|value| value.map(|value| value.wrapping_mul(1000)))) {
                let name = batch.schema_ref().field(*place).name();
                let fact =
                    format!("Column \"{name}\" has fractions of a microsecond, in values of the Parquet type INT96.");
                return Err(Error::new(Kind::OutOfRange, fact));
            }
            columns[*place] = micros.clone();
        }
        RecordBatch::try_new(self.metadata.schema().clone(), columns).map_err(broken)
    }
}

/// Rows on their way to the client.
struct Rows<'a, S> {
    schema: SchemaRef,
    send: &'a mut S,
    sent: u64,
    /// As many as are sent next, few of wide ones: all of them are in memory at a time.
    next: usize,
}

impl<'a, S: FnMut(Message) -> Result<()>> Rows<'a, S> {
    /// Says which columns they have.
    fn new(found: &Schema, send: &'a mut S) -> Result<Self> {
        let fields = found.fields().iter().map(|field| Ok(type_of(field)?.field(field.name())));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Result<Vec<Field>>>()?));
        send(Message::Schema(schema.as_ref().clone()))?;
        Ok(Rows { schema, send, sent: 0, next: 1 })
    }

    fn send(&mut self, batch: &RecordBatch) -> Result<()> {
        // Arrow files have batches of any size, and a dictionary's long text may stand in many rows.
        let mut start = 0;
        while start < batch.num_rows() {
            let part = batch.slice(start, self.next.min(batch.num_rows() - start));
            start += part.num_rows();
            let columns = self.schema.fields().iter().zip(part.columns()).map(|(field, column)| {
                adapt(column, field.data_type()).map_err(|fact| {
                    let (first, last) = (self.sent + 1, self.sent + part.num_rows() as u64);
                    let place = format!("Rows {first} to {last} of column \"{}\" cannot be read.", field.name());
                    Error::new(Kind::OutOfRange, place).with_detail(fact)
                })
            });
            let options = RecordBatchOptions::new().with_row_count(Some(part.num_rows()));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            let part = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(broken)?;
            let bytes = Message::of_batch(&part, self.send)?;
            self.sent += part.num_rows() as u64;
            let row_bytes = bytes / part.num_rows();
            self.next = (MOST_BYTES / row_bytes.max(1)).min(2 * self.next).clamp(1, MOST_ROWS);
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        (self.send)(Message::End(self.sent))
    }
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
    // Some of the libraries' texts are sentences, and some are not.
    let cause = cause.to_string();
    Error::new(Kind::OutOfRange, format!("It is broken: {}.", cause.trim_end_matches('.')))
}

/// A file that is read at places of this reader's own: whoever has opened it shares the descriptor's place.
#[derive(Debug, Clone)]
pub(super) struct Positioned {
    file: Arc<File>,
    /// What it was when it was opened: later, a decoder may not ask.
    length: u64,
    at: u64,
}

impl Positioned {
    /// A file, from its beginning.
    ///
    /// # Errors
    /// It is a pipe, a folder, or something else that is no file.
    pub(super) fn new(file: File) -> std::io::Result<Positioned> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no file"));
        }
        Ok(Positioned { file: Arc::new(file), length: metadata.len(), at: 0 })
    }
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
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Positioned {
    type T = Positioned;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Positioned> {
        Ok(Positioned { at: start, ..self.clone() })
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
