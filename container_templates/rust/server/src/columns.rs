//! Columns as they lie in memory, `docs/protocol.md` §7.
//!
//! The segment of the calls is read, not mapped: the copy is small beside what the handler does with the values, and nobody
//! need know whether the handler still looks at them.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use arrow_buffer::Buffer;
use arrow_select::concat::concat_batches;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use udf_codec::columns::{Layout, decode_call, extent, frame, inline_body, read_frame};
use udf_types::limits::MAX_MESSAGE_BYTES;

use crate::error::CallError;
use crate::function::Function;
use crate::rest::{Answer, Call};

/// The folder of the segments, if engines share one with this container.
const DIRECTORY: &str = "TRANSSHIP_SEGMENT_DIR";
/// Digits of a segment's name.
const NAME_LENGTH: usize = 32;

#[derive(Debug, Deserialize)]
struct CallHeader {
    #[serde(default)]
    batch: u64,
    rows: usize,
    #[serde(default)]
    exchange: String,
    #[serde(default)]
    step: String,
    segment: Option<String>,
    reply_segment: Option<String>,
    buffers: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct ReplyHeader<'a> {
    batch: u64,
    rows: usize,
    micros: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<&'a str>,
    buffers: &'a [usize],
}

/// Whether engines share a folder of segments with this container.
pub(crate) fn has_segments() -> bool {
    std::env::var_os(DIRECTORY).is_some()
}

/// Reads a batch of calls, and the name of the segment into which the reply may be written.
pub(crate) fn read(function: &Function, body: &[u8]) -> Result<(Call, Option<String>), CallError> {
    let unreadable = |fact: String| CallError::violation(format!("the request cannot be read: {fact}"));
    let (header, inline): (CallHeader, _) = read_frame(body).map_err(unreadable)?;
    let data = match &header.segment {
        None => Buffer::from(inline),
        Some(name) => {
            let size = extent(header.buffers.chunks(2)).filter(|size| *size <= MAX_MESSAGE_BYTES);
            read_segment(name, size.ok_or_else(|| unreadable("it is larger than 1 GiB".to_string()))?)?
        }
    };
    let batch = decode_call(function.signature(), header.rows, &header.buffers, &data).map_err(unreadable)?;
    let call = Call { number: header.batch, exchange: header.exchange, step: header.step, batch };
    Ok((call, header.reply_segment))
}

/// Writes a reply, its data to a segment if one is given.
pub(crate) fn write(
    function: &Function,
    call: &Call,
    answer: Answer,
    offered: Option<&str>,
) -> Result<Vec<u8>, CallError> {
    let mut parts = answer.parts.into_iter().map(|part| function.reply(part)).collect::<Result<Vec<_>, _>>()?;
    let reply = match parts.len() {
        1 => parts.remove(0),
        _ => concat_batches(&function.reply_schema(), &parts)
            .map_err(|cause| CallError::new("bad_result", format!("Its reply is malformed: {cause}.")))?,
    };
    let layout = Layout::of(&function.signature().reply_types(), &reply);
    let segment = match offered {
        // If there is no memory left for segments, the data goes with the reply.
        Some(name) => write_segment(&open(name, true)?, &layout).is_ok().then_some(name),
        None => None,
    };
    let header = ReplyHeader {
        batch: call.number,
        rows: reply.num_rows(),
        micros: answer.micros,
        segment,
        buffers: layout.places(),
    };
    Ok(if segment.is_some() { frame(&header, 0) } else { inline_body(&header, &layout) })
}

fn open(name: &str, is_written: bool) -> Result<File, CallError> {
    let is_name = name.len() == NAME_LENGTH && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let Some(directory) = std::env::var_os(DIRECTORY).filter(|_| is_name) else {
        return Err(CallError::violation(format!("there is no segment {name:?}")));
    };
    OpenOptions::new()
        .read(true)
        .write(is_written)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(std::path::Path::new(&directory).join(name))
        .map_err(|cause| unusable(name, &cause))
}

fn unusable(name: &str, cause: &Error) -> CallError {
    CallError::violation(format!("segment {name} cannot be used: {cause}"))
}

/// Writes the buffers to their places.
fn write_segment(file: &File, layout: &Layout) -> Result<(), Error> {
    layout.pieces_to_write().try_for_each(|(offset, piece)| file.write_all_at(piece, offset as u64))
}

/// The first `size` bytes of a segment. One that is too short does not cost the memory that a header asks for.
fn read_segment(name: &str, size: usize) -> Result<Buffer, CallError> {
    let read = |file: File| {
        if file.metadata()?.len() < size as u64 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    read(open(name, false)?).map(Buffer::from).map_err(|cause: Error| unusable(name, &cause))
}
