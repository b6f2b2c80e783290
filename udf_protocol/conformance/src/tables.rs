//! Shared tables (§4.13, §10): look-ups in segments that the judge writes, by calls that have different ones.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::MutableBuffer;
use arrow_schema::{DataType, Field, Schema};
use shared_tables::dictionary::encoded_type;
use shared_tables::segment::{Segment, SegmentWriter};
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_client::tables::SharedTable;
use udf_types::signature::{Argument, Signature};
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::{Finding, Judge, batch, say};

const CASE: &str = "reads the shared tables of its own call, by key";
/// The table, of keys and names, and what is asked of it.
const TABLE: &str = "numbers";
/// Rows of the first segment: more than a record batch has.
const ROWS: i64 = 70_000;

impl Judge {
    pub(crate) fn judge_tables(&mut self) {
        if !matches!(self.target, Target::Image { .. }) {
            return;
        }
        if !self.has_tables {
            return self.skip("10", CASE, "the server does not offer it");
        }
        let argument = Argument { name: String::new(), ty: Type::Int8 };
        let signature = Signature::scalar("table_lookup", vec![argument], Type::Text);
        self.with("10", CASE, signature, |judge, signature| {
            let keys =
                [Some(1), None, Some(ROWS), Some(0), Some(ROWS + 1), Some(1), Some(-5), Some(65_536), Some(65_537)];
            let names = |prefix: &str| {
                let name = |key: Option<i64>| {
                    key.filter(|key| (1..=ROWS + 1).contains(key)).map(|key| format!("{prefix}{key}"))
                };
                keys.map(name).to_vec()
            };
            let table = |prefix: &str, names: &DataType| {
                let segments = [(1..ROWS + 1, prefix), (ROWS + 1..ROWS + 2, prefix)];
                table_of(&segments, names).map_err(|error| say(&error))
            };
            let (plain, encoded) = (DataType::Utf8, encoded_type(&DataType::Utf8));
            let (first, second) = (table("a", &plain)?, table("b", &encoded)?);
            let empty = |names: &DataType| table_of(&[], names).map_err(|error| say(&error));
            let (none, none_encoded) = (empty(&plain)?, empty(&encoded)?);
            let open = |tables: &[SharedTable]| {
                let call = Call { tables: tables.to_vec(), ..(*judge.call_of(signature)).clone() };
                judge.client.open(Arc::new(call))
            };
            let ask = |exchange: &mut udf_client::exchange::Exchange| -> Result<Vec<Option<String>>> {
                let column: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
                exchange.send(batch(signature, 0, keys.len(), vec![column], None));
                let reply = exchange.receive(&PlainHost)?;
                let found = reply.columns.column(0).as_string::<i32>();
                Ok(found.iter().map(|name| name.map(str::to_string)).collect())
            };
            // Versions at a time: two, of which one has a dictionary of names, and the same without rows.
            let mut exchanges = [&first, &second, &none, &none_encoded].map(|table| open(std::slice::from_ref(table)));
            let expected = [names("a"), names("b"), vec![None; keys.len()], vec![None; keys.len()]];
            for (exchange, expected) in exchanges.iter_mut().zip(expected) {
                let found = ask(exchange).map_err(|error| say(&error))?;
                if found != expected {
                    return Err(format!("for {keys:?} it found {found:?}, and not {expected:?}"));
                }
            }
            refuses(ask(&mut open(&[])), "a call without tables")
        });
    }
}

/// A call that must fail as its handler does.
fn refuses(outcome: Result<Vec<Option<String>>>, what: &str) -> Finding {
    match outcome {
        Err(error) if error.kind() == Kind::UserCode => Ok(()),
        Err(error) => Err(format!("{what} failed otherwise than by an exception: {}", say(&error))),
        Ok(found) => Err(format!("{what} found {found:?}")),
    }
}

/// A table of segments with these keys, whose names have this prefix, in a column of this type; each segment has a row with a NULL key, too.
fn table_of(segments: &[(std::ops::Range<i64>, &str)], names: &DataType) -> Result<SharedTable> {
    let rows = |(keys, prefix): &(std::ops::Range<i64>, &str)| {
        let keys = keys.clone().map(Some).chain([None]).collect::<Vec<_>>();
        let names = keys.iter().map(|key| key.map_or("nobody".to_string(), |key| format!("{prefix}{key}")));
        let names: ArrayRef = Arc::new(StringArray::from_iter_values(names));
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        RecordBatch::try_from_iter_with_nullable([("key", keys, true), ("name", names, true)])
            .map_err(|cause| Error::invalid_definition(cause.to_string()))
    };
    let fields = vec![Field::new("key", DataType::Int64, true), Field::new("name", names.clone(), true)];
    let schema = Arc::new(Schema::new(fields));
    let files = match segments {
        [] => vec![files_of(&schema, &[])?],
        _ => segments.iter().map(|segment| files_of(&schema, &[rows(segment)?])).collect::<Result<_>>()?,
    };
    SharedTable::new(TABLE, files, Arc::new(()))
}

fn files_of(schema: &arrow_schema::SchemaRef, batches: &[RecordBatch]) -> Result<Vec<OwnedFd>> {
    let mut writer = SegmentWriter::new(Vec::new(), schema, &[0])?;
    batches.iter().try_for_each(|batch| writer.write(batch))?;
    let finished = writer.finish()?;
    let mut files = vec![file_of(&finished.out)?];
    if !batches.is_empty() {
        let mut bytes = MutableBuffer::new(finished.out.len());
        bytes.extend_from_slice(&finished.out);
        let segment = Segment::open(bytes.into())?;
        let index = segment.build_index(finished.digest.seed())?;
        files.extend(index.map(|index| file_of(&index)).transpose()?);
    }
    Ok(files)
}

/// A file in memory, open for reading only.
fn file_of(bytes: &[u8]) -> Result<OwnedFd> {
    let made = || {
        let mut file = tempfile::tempfile_in("/dev/shm")?;
        file.write_all(bytes)?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        File::open(path).map(OwnedFd::from)
    };
    made().map_err(|cause: std::io::Error| Error::new(Kind::Unreachable, format!("no file in memory: {cause}")))
}
