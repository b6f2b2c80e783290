//! Rows of a table's segments as SQL values: all of them, or those of one key.

use std::sync::Arc;

use pgrx::pg_sys;
use shared_tables::dictionary;
use shared_tables::keys::Probe;
use shared_tables::segment::Segment;
use udf_types::{Error, Kind, Result};

use super::Table;
use crate::datum::{from_arrow, to_arrow};
use crate::report;

/// A version of a table, and where a reader is in it.
pub(super) struct Scan {
    table: Table,
    segments: Vec<Arc<Segment>>,
    /// The columns that are read: their positions in the table, and in a row.
    wanted: Vec<(usize, usize)>,
    /// The key that is looked for.
    key: Probe,
    /// Its rows in a segment.
    found: Vec<u32>,
    position: Position,
}

/// Where a reader is.
enum Position {
    Start,
    /// The next row of a segment.
    All {
        segment: usize,
        row: u32,
    },
    /// The next of the rows that were found in the segment before this one.
    OfKey {
        segment: usize,
        next: usize,
    },
    End,
}

impl Scan {
    /// # Errors
    /// There is no room for the table's segments, or they are damaged, or not this table's.
    ///
    /// # Safety
    /// The snapshot is registered or active.
    pub(super) unsafe fn new(table: Table, wanted: Vec<(usize, usize)>, snapshot: pg_sys::Snapshot) -> Result<Scan> {
        // SAFETY: the caller says so.
        let segments = unsafe { super::open_segments(&table, snapshot)? };
        Ok(Scan { table, segments, wanted, key: Probe::default(), found: Vec::new(), position: Position::Start })
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// How many rows each segment of the version has.
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = usize> {
        self.segments.iter().map(|segment| segment.rows())
    }

    /// Back to before the first row.
    pub(super) fn restart(&mut self) {
        self.position = Position::Start;
    }

    pub(super) fn is_at_start(&self) -> bool {
        matches!(self.position, Position::Start)
    }

    /// Goes on with all rows.
    pub(super) fn begin_all(&mut self) {
        self.position = Position::All { segment: 0, row: 0 };
    }

    /// Goes on with the rows of a key: one value per key column, none for NULL, which no row has.
    ///
    /// # Safety
    /// The values are of the columns' types.
    pub(super) unsafe fn begin_key(&mut self, values: &[Option<pg_sys::Datum>]) {
        self.key.clear();
        let columns = self.table.key.iter().map(|position| &self.table.columns[*position]);
        let are_possible = columns.zip(values).all(|(column, value)| {
            let mut is_possible = false;
            self.key.push(|bytes| {
                // SAFETY: the caller says so.
                is_possible =
                    value.is_some_and(|value| unsafe { to_arrow::append_key(bytes, &column.sql_type, value) });
            });
            is_possible
        });
        self.found.clear();
        self.position = if are_possible { Position::OfKey { segment: 0, next: 0 } } else { Position::End };
    }

    /// The next row: a segment, and a row of it.
    fn advance(&mut self) -> Option<(usize, u32)> {
        loop {
            match &mut self.position {
                Position::Start | Position::End => return None,
                Position::All { segment, row } => match self.segments.get(*segment) {
                    None => self.position = Position::End,
                    Some(found) if (*row as usize) < found.rows() => {
                        let place = (*segment, *row);
                        *row += 1;
                        return Some(place);
                    }
                    Some(_) => (*segment, *row) = (*segment + 1, 0),
                },
                Position::OfKey { segment, next } => {
                    if let Some(row) = self.found.get(*next) {
                        *next += 1;
                        return Some((*segment - 1, *row));
                    }
                    let Some(of_segment) = self.segments.get(*segment) else {
                        self.position = Position::End;
                        continue;
                    };
                    self.found.clear();
                    self.found.extend_from_slice(&of_segment.find(&self.key));
                    (*segment, *next) = (*segment + 1, 0);
                }
            }
        }
    }

    /// Writes the wanted columns of the next row, as values in the current memory context; false if there is none.
    pub(super) fn next(&mut self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) -> bool {
        let Some((segment, row)) = self.advance() else { return false };
        self.read(segment, row, values, nulls);
        true
    }

    /// The same of any row: how many there are in each segment says [`Scan::rows`].
    pub(super) fn read(&self, segment: usize, row: u32, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        let segment = &self.segments[segment];
        let (batch, row) = segment.place(row);
        let batch = &segment.batches()[batch];
        for (position, place) in &self.wanted {
            let column = &self.table.columns[*position];
            let datum = match dictionary::place(batch.column(*position), row) {
                Some((values, row)) => from_arrow::datum(&column.sql_type, values, row),
                None => Ok(None),
            };
            match datum {
                Ok(datum) => {
                    nulls[*place] = datum.is_none();
                    values[*place] = datum.unwrap_or(pg_sys::Datum::from(0usize));
                }
                Err(what) => {
                    let message = format!("a row of shared table \"{}\" is damaged", self.table.name);
                    let error = Error::new(Kind::OutOfRange, message);
                    report::raise_error(&error.with_detail(format!("Column \"{}\" holds {what}.", column.name)), None)
                }
            }
        }
    }

    /// How many bytes of a row's values lie in dictionaries, and so count nowhere else.
    pub(super) fn dictionary_bytes(&self, segment: usize, row: u32) -> u64 {
        let segment = &self.segments[segment];
        let (batch, row) = segment.place(row);
        let columns = segment.batches()[batch].columns();
        columns.iter().map(|column| dictionary::value_bytes(column, row) as u64).sum()
    }
}
