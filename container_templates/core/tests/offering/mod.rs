//! A client that offers shared tables.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::MutableBuffer;
use arrow_schema::{DataType, Schema, SchemaRef};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use shared_tables::dictionary::encoded_type;
use shared_tables::segment::{Segment, SegmentWriter};

/// Most descriptors that the kernel lets one message have.
const MOST_DESCRIPTORS: usize = 253;

/// Rows of a number and its name, the key.
pub fn numbers(rows: &[(i64, &str)]) -> RecordBatch {
    let keys: ArrayRef = rows.iter().map(|row| Some(row.0)).collect::<Int64Array>().into_array();
    let names: ArrayRef = rows.iter().map(|row| Some(row.1)).collect::<StringArray>().into_array();
    RecordBatch::try_from_iter([("key", keys), ("name", names)]).unwrap()
}

trait IntoArray {
    fn into_array(self) -> ArrayRef;
}

impl<T: arrow_array::Array + 'static> IntoArray for T {
    fn into_array(self) -> ArrayRef {
        Arc::new(self)
    }
}

/// The columns of a segment, of which texts that are not in the key have dictionaries.
fn with_dictionaries(schema: &Schema, key: &[usize]) -> SchemaRef {
    let fields = schema.fields().iter().enumerate().map(|(position, field)| match field.data_type() {
        DataType::Utf8 if !key.contains(&position) => {
            field.as_ref().clone().with_data_type(encoded_type(&DataType::Utf8))
        }
        _ => field.as_ref().clone(),
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The file of a segment, and that of its index if it has a key.
pub fn files(rows: &RecordBatch, key: &[usize]) -> Vec<File> {
    let mut writer = SegmentWriter::new(Vec::new(), &with_dictionaries(&rows.schema(), key), key).unwrap();
    writer.write(rows).unwrap();
    let finished = writer.finish().unwrap();
    let mut bytes = MutableBuffer::new(finished.out.len());
    bytes.extend_from_slice(&finished.out);
    let index = Segment::open(bytes.into()).unwrap().build_index(finished.digest.seed()).unwrap();
    let parts = std::iter::once(finished.out).chain(index);
    let file = |bytes: Vec<u8>| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    };
    parts.map(file).collect()
}

/// A connection to a server that takes offers.
pub struct Offering {
    pub stream: UnixStream,
}

impl Offering {
    pub fn connect(socket: &Path) -> Offering {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Offering { stream }
    }

    /// Sends bytes, the first of them with descriptors.
    pub fn send(&self, bytes: &[u8], files: &[impl AsFd]) -> std::io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        (&self.stream).write_all(&bytes[sent..])
    }

    /// The next answer; `None` if the server has closed the connection.
    pub fn answer(&self) -> Option<Value> {
        let mut line = String::new();
        // The server may have closed it before it had read all.
        let _ = BufReader::new(&self.stream).read_line(&mut line);
        serde_json::from_str(&line).ok()
    }

    /// Sends a line and its files, and gives the answer.
    pub fn ask(&self, line: &Value, files: &[impl AsFd]) -> Value {
        self.send(format!("{line}\n").as_bytes(), files).unwrap();
        self.answer().expect("the server answers")
    }

    /// Offers a table of these segments, whose first column is the key.
    pub fn offer(&self, offer: &str, table: &str, segments: &[RecordBatch]) {
        let of_segments: Vec<Vec<File>> = segments.iter().map(|rows| files(rows, &[0])).collect();
        let counts: Vec<usize> = of_segments.iter().map(Vec::len).collect();
        let line = json!({"offer": offer, "table": table, "files": counts});
        assert_eq!(self.ask(&line, &of_segments.into_iter().flatten().collect::<Vec<_>>()), json!({}));
    }
}
