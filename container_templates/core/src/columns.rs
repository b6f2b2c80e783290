//! Columns as they lie in memory, `docs/protocol.md` §7.
//!
//! The segment of the calls is read, not mapped: the copy is small beside what the handler does with the values, and nobody
//! need know whether the handler still looks at them.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::Schema;
use arrow_select::concat::concat_batches;
use arrow_select::take::take;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use udf_codec::columns::{CallData, Layout, decode_call, extent, frame, inline_body, read_frame};
use udf_codec::constants::Constants;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{FunctionKind, RowErrors, Signature};
use udf_types::textual_type;
use udf_types::types::Type;

use crate::error::CallError;
use crate::function::{Arrived, Function};
use crate::json::{BatchAnswer, BatchOfCalls, check_constants, unreadable};

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
    row_errors: Option<RowErrors>,
    segment: Option<String>,
    reply_segment: Option<String>,
    #[serde(default)]
    constants: Vec<usize>,
    constants_id: Option<String>,
    #[serde(default)]
    same_constants: bool,
    #[serde(default)]
    may_alias: bool,
    #[serde(default)]
    may_encode: bool,
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
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    aliases: &'a [usize],
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    dictionaries: &'a [usize],
}

/// What a client offers for the reply.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The segment into which it may be written.
    segment: Option<String>,
    /// The data of the call and the places of its buffers, to which it may refer.
    call: Option<(Buffer, Vec<usize>)>,
    /// Whether columns of texts may be dictionaries.
    pub(crate) may_encode: bool,
}

/// The constants that a connection's last request with constants brought (§7.11).
#[derive(Debug, Default)]
pub(crate) struct Kept {
    function: String,
    id: Option<String>,
    constants: Constants,
}

/// Whether engines share a folder of segments with this container.
pub(crate) fn has_segments() -> bool {
    std::env::var_os(DIRECTORY).is_some()
}

/// Reads a batch of calls, and what the client offers for the reply. `kept` is the connection's.
pub(crate) fn read(function: &Function, body: &[u8], kept: &mut Kept) -> Result<(BatchOfCalls, Offer), CallError> {
    let (header, inline): (CallHeader, _) = read_frame(body).map_err(unreadable)?;
    let data = match &header.segment {
        // A copy, which begins where 64-bit values may.
        None => Buffer::from(inline),
        Some(name) => {
            let size = extent(header.buffers.chunks(2)).filter(|size| *size <= MAX_MESSAGE_BYTES);
            read_segment(name, size.ok_or_else(|| unreadable("it is larger than 1 GiB"))?)?
        }
    };
    let arrived = if header.constants.is_empty() {
        let others = decode_call(function.signature(), header.rows, &header.buffers, &data).map_err(unreadable)?;
        Arrived { others, constants: Constants::default() }
    } else {
        with_constants(function, &header, &data, kept)?
    };
    let (number, row_errors) = (header.batch, header.row_errors);
    let call = BatchOfCalls { number, exchange: header.exchange, step: header.step, row_errors, arrived };
    let own = header.may_alias.then_some((data, header.buffers));
    Ok((call, Offer { segment: header.reply_segment, call: own, may_encode: header.may_encode }))
}

fn with_constants(
    function: &Function,
    header: &CallHeader,
    data: &Buffer,
    kept: &mut Kept,
) -> Result<Arrived, CallError> {
    let signature = function.signature();
    if signature.kind == FunctionKind::Aggregate {
        return Err(CallError::violation(format!("{} takes no constants", function.name())));
    }
    check_constants(&header.constants, signature.arguments.len())?;
    let (mut buffers, mut others, mut its) = (header.buffers.chunks(2), Vec::new(), Vec::new());
    for (position, argument) in signature.arguments.iter().enumerate() {
        let is_constant = header.constants.contains(&position);
        if is_constant && header.same_constants {
            continue;
        }
        let places = buffers.by_ref().take(buffers_of(&argument.ty)).flatten();
        if is_constant { its.extend(places) } else { others.extend(places) }
    }
    // Those that no column has, so that they are found to be too many.
    others.extend(buffers.flatten());
    let of_columns = |is_constant: bool| {
        let arguments = signature.arguments.iter().enumerate();
        let arguments = arguments.filter(|(position, _)| header.constants.contains(position) == is_constant);
        Signature { arguments: arguments.map(|(_, argument)| argument.clone()).collect(), ..signature.clone() }
    };
    let others = decode_call(&of_columns(false), header.rows, &others, data).map_err(unreadable)?;
    let rows = others.num_rows();
    if header.same_constants {
        let is_known = kept.function == function.name()
            && header.constants_id.is_some()
            && kept.id == header.constants_id
            && kept.constants.positions() == header.constants;
        if !is_known {
            return Err(unreadable("it refers to constants that were not sent"));
        }
    } else {
        let values = decode_call(&of_columns(true), 1, &its, data).map_err(unreadable)?;
        // Copies, so that the rest of the batch is not kept with them.
        let first = UInt32Array::from(vec![0]);
        let copies = values.columns().iter().map(|value| take(value, &first, None));
        let copies = copies.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let constants = Constants::new(header.constants.iter().copied().zip(copies).collect());
        let (function, id) = (function.name().to_string(), header.constants_id.clone());
        *kept = Kept { function, id, constants };
    }
    let constants = kept.constants.clone();
    let schema: Schema = constants.schema_of_others(&signature.call_schema());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let others =
        RecordBatch::try_new_with_options(Arc::new(schema), others.columns().to_vec(), &options).map_err(unreadable)?;
    Ok(Arrived { others, constants })
}

/// How many buffers a column has (§7.1).
fn buffers_of(ty: &Type) -> usize {
    1 + match ty {
        textual_type!() | Type::Bytea => 2,
        Type::Array(element) => 1 + buffers_of(element),
        Type::Range(_) | Type::Composite(_) => ty.attributes().iter().map(|part| buffers_of(&part.ty)).sum(),
        _ => 1,
    }
}

/// Writes a reply, its data to a segment if one is given.
pub(crate) fn write(
    function: &Function,
    call: &BatchOfCalls,
    answer: BatchAnswer,
    offer: &Offer,
) -> Result<Vec<u8>, CallError> {
    let reply_of = |part| function.reply(part, call.row_errors);
    let mut parts = answer.parts.into_iter().map(reply_of).collect::<Result<Vec<_>, _>>()?;
    let reply = match parts.len() {
        1 => parts.remove(0),
        _ => concat_batches(&function.reply_schema(call.row_errors), &parts)
            .map_err(|cause| CallError::new("bad_result", format!("Its reply is malformed: {cause}.")))?,
    };
    let own = offer.call.as_ref().map(|(data, places)| CallData::new(data, places));
    let layout = Layout::of_reply(&function.reply_types(call.row_errors), &reply, own);
    let segment = match offer.segment.as_deref() {
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
        aliases: layout.aliases(),
        dictionaries: layout.dictionaries(),
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
        let mut bytes = MutableBuffer::from_len_zeroed(size);
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    read(open(name, false)?).map(Buffer::from).map_err(|cause: Error| unusable(name, &cause))
}
