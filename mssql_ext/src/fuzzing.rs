//! Readers of what the host, and those who use it, hand in, for the fuzzers of `fuzz/`.

use std::path::Path;

use arrow_array::{Array, ArrayRef};
use udf_types::types::Type;

use crate::abi::{SQL_NULL_DATA, code};
use crate::columns::ServerType;
use crate::columns::from_arrow::OutputColumn;
use crate::columns::raw::RawColumn;
use crate::columns::to_arrow::ColumnReader;
use crate::library;
use crate::script::Script;

/// The codes of the types that the host may name.
pub const CODES: [i16; 16] = [
    code::CHAR,
    code::NUMERIC,
    code::REAL,
    code::DOUBLE,
    code::DATE,
    code::TIME,
    code::TIMESTAMP,
    code::BINARY,
    code::BIT,
    code::WCHAR,
    code::GUID,
    code::SSHORT,
    code::SLONG,
    code::SBIGINT,
    code::UTINYINT,
    code::SS_TIME2,
];

/// Most bytes of a column here.
const MOST_BYTES: usize = 1 << 20;

/// Reads a script, with libraries that are all installed, and the types of T-SQL that it may have.
pub fn script(text: &str) {
    let digest = format!("sha256:{}", "0".repeat(64));
    if let Ok(script) = Script::parse(text, |name| Ok((format!("{name}:1"), digest))) {
        let _ = script.places();
    }
    for line in text.lines() {
        if let Ok(sql) = ServerType::parse(line) {
            assert_eq!(ServerType::parse(&sql.to_string()).ok(), Some(sql), "{line}");
        }
    }
}

/// Unpacks an archive of an external library into a folder.
pub fn unpack_library(archive: &Path, target: &Path) {
    if library::unpack("lib", archive, target).is_ok() {
        let _ = library::check_project("lib", target);
    }
}

/// Reads a column of an Execute as arrays of `ty`, some rows at a time; none if it is refused. `data` is as long as the
/// column's indicators say, with zeros at its end.
pub fn read_column(
    (code, size, digits): (i16, u64, i16),
    ty: &Type,
    rows: usize,
    data: &[u8],
    indicators: Option<&[i32]>,
    batch: usize,
) -> Vec<ArrayRef> {
    let Ok(sql) = ServerType::from_host(code, size, digits) else { return Vec::new() };
    if indicators.is_some_and(|indicators| indicators.len() != rows) {
        return Vec::new();
    }
    let lengths = || indicators.into_iter().flatten().filter_map(|length| usize::try_from(*length).ok());
    let needed = sql.element_bytes().map_or_else(|| lengths().sum(), |element| rows * element);
    if needed > MOST_BYTES {
        return Vec::new();
    }
    let mut data = data.to_vec();
    data.resize(needed, 0);
    let pointer = if data.is_empty() { std::ptr::null() } else { data.as_ptr() };
    let lengths = indicators.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: there are as many indicators as rows, and as many bytes as these tell of; both outlive the column.
    let Ok(column) = (unsafe { RawColumn::new(sql, 1, rows, pointer, lengths) }) else { return Vec::new() };
    let Some(mut reader) = ColumnReader::new(column, ty) else { return Vec::new() };
    let (mut read, mut passed, mut start) = (Vec::new(), OutputColumn::new(sql, rows), Some(0));
    for first in (0..rows).step_by(batch) {
        let last = rows.min(first + batch);
        start = start.and_then(|start| passed.append_raw(&column, first..last, start).ok());
        match reader.read(first..last) {
            Ok(array) => {
                assert_eq!(array.len(), last - first);
                assert!((first..last).all(|row| column.is_null(row) == array.is_null(row - first)));
                read.push(array);
            }
            Err(misfit) => {
                assert!((first..last).contains(&misfit.row) && !misfit.sentence().is_empty());
                break;
            }
        }
    }
    read
}

/// Writes results for the host, and checks that it finds as many as there are.
pub fn write_results(code: i16, size: u64, digits: i16, ty: &Type, results: &ArrayRef) {
    let Ok(sql) = ServerType::from_host(code, size, digits) else { return };
    let mut column = OutputColumn::new(sql, results.len());
    if column.append(ty, results).is_ok() {
        assert_eq!(column.rows(), results.len());
        for row in 0..column.rows() {
            assert_eq!(column.indicator(row) == SQL_NULL_DATA, results.is_null(row));
            assert!(column.indicator(row) >= SQL_NULL_DATA);
        }
    }
}
