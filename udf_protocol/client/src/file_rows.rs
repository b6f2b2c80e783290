//! The rows of a file, Parquet or Arrow, which a process of the manager's decodes: nobody has checked the file, and its readers are
//! large. The process gets the open file, has no rights itself, and says what it finds in batches, which are checked here.
//!
//! A message begins with its kind. The schema comes first, then the batches, then the end; or an error at any time. Whoever stops in
//! between has failed.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_schema::{Schema, SchemaRef};
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch, decode_schema, encode_schema};
use udf_codec::wire::shorten;
use udf_types::terminal::printable;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::channel::{Channel, MOST_BYTES, lacks_descriptors};
use crate::host::Host;

/// What the name of the decoders' socket has behind the manager's.
pub const SUFFIX: &str = ".files";
/// Bytes that messages should have of rows that do not fit into one.
const MOST_BATCH_BYTES: usize = MOST_BYTES / 2;
/// Longest silence of a decoder, which may have to wait for others.
const MOST_SILENCE: Duration = Duration::from_secs(300);
/// A decoder ends if its client reads nothing for so long, since others may wait for its place.
pub const MOST_STALL: Duration = Duration::from_secs(120);

/// What a decoder says.
#[derive(Debug)]
pub enum Message {
    /// The columns, with the types of `docs/types.md`.
    Schema(Schema),
    /// Some of the rows.
    Batch(Box<FlightData>),
    /// There are no more; how many there were.
    End(u64),
    /// What went wrong; about the file alone, whose name the decoder does not know.
    Failed {
        /// Of what kind it is.
        kind: Kind,
        /// What it is.
        fact: String,
    },
}

const SCHEMA: u8 = 0;
const BATCH: u8 = 1;
const END: u8 = 2;
const FAILED: u8 = 3;

impl Message {
    /// Rows of a batch as one message or more, given to `send`; how many bytes their values have.
    ///
    /// # Errors
    /// A row is too long for a message, or what `send` returns.
    pub fn of_batch(batch: &RecordBatch, send: &mut impl FnMut(Message) -> Result<()>) -> Result<usize> {
        let failed = |cause| Error::new(Kind::OutOfRange, format!("Its rows cannot be sent: {cause}."));
        let data = BatchEncoder::default().encode(batch).map_err(failed)?;
        let (bytes, length) = (data.data_body.len(), flight_length(&data));
        if length <= MOST_BYTES {
            return send(Message::Batch(Box::new(data))).map(|()| bytes);
        }
        if batch.num_rows() <= 1 {
            return Err(Error::new(Kind::OutOfMemory, format!("A row has more than {} MB.", MOST_BYTES >> 20)));
        }
        drop(data);
        // Only what is of the part is encoded of it.
        let rows = batch.num_rows() / length.div_ceil(MOST_BATCH_BYTES).min(batch.num_rows());
        let starts = (0..batch.num_rows()).step_by(rows);
        starts
            .map(|start| Message::of_batch(&batch.slice(start, rows.min(batch.num_rows() - start)), send))
            .try_fold(0, |sum, bytes| Ok(sum + bytes?))
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let of_flight = |kind: u8, data: &FlightData| {
            let length = u32::try_from(data.data_header.len()).unwrap_or(u32::MAX).to_le_bytes();
            [&[kind][..], &length, &data.data_header, &data.data_body].concat()
        };
        match self {
            Message::Schema(schema) => of_flight(SCHEMA, &encode_schema(schema)),
            Message::Batch(data) => of_flight(BATCH, data),
            Message::End(rows) => [&[END][..], &rows.to_le_bytes()].concat(),
            Message::Failed { kind, fact } => {
                let text = serde_json::to_vec(&(kind, fact)).expect("JSON has kinds and texts");
                [&[FAILED][..], &text].concat()
            }
        }
    }

    /// Reads one; the error says what is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Message, String> {
        let cut_off = || "a message is cut off".to_string();
        let (kind, rest) = bytes.split_first().ok_or_else(cut_off)?;
        match *kind {
            SCHEMA | BATCH => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
                let (header, body) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut_off)?;
                let data = FlightData::new().with_data_header(header.to_vec()).with_data_body(body.to_vec());
                match *kind {
                    SCHEMA => decode_schema(&data).map(|schema| Message::Schema(schema.as_ref().clone())).map_err(say),
                    _ => Ok(Message::Batch(Box::new(data))),
                }
            }
            END => rest.try_into().map(|rows| Message::End(u64::from_le_bytes(rows))).map_err(|_| cut_off()),
            FAILED => serde_json::from_slice(rest).map(|(kind, fact)| Message::Failed { kind, fact }).map_err(say),
            other => Err(format!("there is no message of kind {other}")),
        }
    }
}

/// Length of a message with such data.
fn flight_length(data: &FlightData) -> usize {
    1 + size_of::<u32>() + data.data_header.len() + data.data_body.len()
}

fn say(cause: impl std::fmt::Display) -> String {
    cause.to_string()
}

/// The rows of a file that is being decoded.
#[derive(Debug)]
pub struct FileRows {
    channel: Channel,
    /// The file's name, for errors.
    name: String,
    columns: Vec<(String, Type)>,
    schema: SchemaRef,
    rows: u64,
    has_ended: bool,
}

impl FileRows {
    /// Has the manager that listens on the socket `manager` decode a file, which is open for reading, and waits for its columns.
    ///
    /// # Errors
    /// The manager cannot be reached, does not let this user in, or its decoder fails: the file is none that it reads, or has columns of
    /// types that `docs/types.md` does not have. What the host's wait returns.
    pub fn open(host: &impl Host, manager: &Path, file: BorrowedFd<'_>, name: &str) -> Result<FileRows> {
        let failed = |cause: std::io::Error| match lacks_descriptors(&cause) {
            true => Error::new(Kind::OutOfMemory, format!("no file descriptors for file \"{name}\": {cause}")),
            false => Error::manager_unreachable(&manager.to_string_lossy(), cause),
        };
        let channel = Channel::connect_beside(manager, SUFFIX).map_err(failed)?;
        channel.send_with_file(&[], file).map_err(failed)?;
        let (columns, schema) = (Vec::new(), Arc::new(Schema::empty()));
        let mut rows = FileRows { channel, name: name.to_string(), columns, schema, rows: 0, has_ended: false };
        let Message::Schema(schema) = rows.receive(host)? else {
            return Err(rows.failed_protocol("its columns are missing"));
        };
        let types = schema.fields().iter().map(|field| {
            let ty = Type::from_field(field).map_err(|error| rows.failed(error.kind(), error.message()))?;
            Ok((field.name().clone(), ty))
        });
        rows.columns = types.collect::<Result<_>>()?;
        let fields: Vec<_> = rows.columns.iter().map(|(name, ty)| ty.field(name)).collect();
        rows.schema = Arc::new(Schema::new(fields));
        Ok(rows)
    }

    /// Names and types of the columns.
    pub fn columns(&self) -> &[(String, Type)] {
        &self.columns
    }

    /// The next rows; none at the end of the file.
    ///
    /// # Errors
    /// The decoder fails, or the host's wait.
    pub fn next(&mut self, host: &impl Host) -> Result<Option<RecordBatch>> {
        if self.has_ended {
            return Ok(None);
        }
        match self.receive(host)? {
            Message::Batch(data) => {
                let batch =
                    decode_batch(&data, self.schema.clone()).map_err(|cause| self.failed_protocol(&say(cause)))?;
                self.rows += batch.num_rows() as u64;
                Ok(Some(batch))
            }
            Message::End(rows) if rows == self.rows => {
                self.has_ended = true;
                Ok(None)
            }
            _ => Err(self.failed_protocol("rows are missing")),
        }
    }

    /// The error of this file. The fact may be of its author's, so it is cut, and commands no terminal.
    pub fn failed(&self, kind: Kind, fact: &str) -> Error {
        let mut fact = fact.to_string();
        shorten(&mut fact);
        Error::new(kind, format!("could not read file \"{}\"", self.name)).with_detail(printable(&fact))
    }

    fn failed_protocol(&self, fact: &str) -> Error {
        self.failed(Kind::ProtocolViolation, &format!("The manager's decoder broke the protocol: {fact}."))
    }

    fn receive(&self, host: &impl Host) -> Result<Message> {
        let start = Instant::now();
        let bytes = loop {
            match self.channel.receive() {
                Ok(Some(bytes)) => break bytes,
                Ok(None) => {
                    let fact = format!(
                        "Its decoder ended: the file needs more memory than a decoder may have, or is made to break it, \
                         or its rows were not read for {} s, or the manager has ended or does not let this user in.",
                        MOST_STALL.as_secs()
                    );
                    return Err(self.failed(Kind::OutOfMemory, &fact));
                }
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(self.failed(Kind::Unreachable, &format!("{cause}."))),
            }
            let left = MOST_SILENCE.saturating_sub(start.elapsed());
            if left.is_zero() {
                let fact = format!("Its decoder has said nothing for {} s.", MOST_SILENCE.as_secs());
                return Err(self.failed(Kind::Timeout, &fact));
            }
            host.wait(self.channel.as_fd(), left)?;
        };
        match Message::from_bytes(&bytes).map_err(|fact| self.failed_protocol(&fact))? {
            Message::Failed { kind, fact } => Err(self.failed(kind, &fact)),
            message => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::StringArray;

    use super::*;

    fn texts(texts: &[String]) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![Type::Text.field("t")]));
        RecordBatch::try_new(schema, vec![Arc::new(StringArray::from_iter_values(texts))]).unwrap()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let schema = Schema::new(vec![Type::Uuid.field("a"), Type::Int4.field("b")]);
        let Ok(Message::Schema(found)) = Message::from_bytes(&Message::Schema(schema.clone()).to_bytes()) else {
            panic!("a schema")
        };
        assert_eq!(found, schema);
        assert!(matches!(Message::from_bytes(&Message::End(7).to_bytes()), Ok(Message::End(7))));
        let failed = Message::Failed { kind: Kind::OutOfRange, fact: "x".to_string() };
        assert!(matches!(Message::from_bytes(&failed.to_bytes()),
            Ok(Message::Failed { kind: Kind::OutOfRange, fact }) if fact == "x"));
        for bytes in [
            &[][..],
            &[7],
            &[END, 1],
            &[SCHEMA, 255, 255, 255, 255],
            &[BATCH, 0],
            &[FAILED, b'{'],
            &[SCHEMA, 0, 0, 0, 0],
        ] {
            assert!(Message::from_bytes(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn long_rows_go_in_parts_and_too_long_ones_not_at_all() {
        let long: Vec<String> = (0..9).map(|i| i.to_string().repeat(3 << 20)).collect();
        let (mut found, mut parts) = (Vec::new(), 0);
        let batch = texts(&long);
        let mut keep = |message: Message| {
            let Ok(Message::Batch(data)) = Message::from_bytes(&message.to_bytes()) else { panic!("a batch") };
            let part = decode_batch(&data, batch.schema()).unwrap();
            let column: &StringArray = part.column(0).as_any().downcast_ref().unwrap();
            found.extend(column.iter().flatten().map(str::to_string));
            parts += 1;
            Ok(())
        };
        let bytes = Message::of_batch(&batch, &mut keep).unwrap();
        assert!(found == long && parts > 3 && bytes >= 27 << 20, "{parts} {bytes}");
        // Of a part of a batch that part alone is sent.
        let (part, mut parts) = (batch.slice(3, 1), 0);
        let mut count = |_| {
            parts += 1;
            Ok(())
        };
        let bytes = Message::of_batch(&part, &mut count).unwrap();
        assert!(parts == 1 && (3 << 20..4 << 20).contains(&bytes), "{parts} {bytes}");
        let error = Message::of_batch(&texts(&["x".repeat(MOST_BYTES)]), &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfMemory);
        // One of them is too long, wherever it is.
        let error = Message::of_batch(&texts(&["x".to_string(), "x".repeat(MOST_BYTES)]), &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfMemory);
    }
}
