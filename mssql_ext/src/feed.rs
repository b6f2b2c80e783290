//! What feeds a function's arguments during one call of Execute: input columns, some rows at a time, and parameters, whose
//! values are the same in every row.

use std::ops::Range;

use arrow_array::{Array, ArrayRef};
use udf_codec::constants::Constants;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::{Error, Kind};

use crate::binding::{Parameter, Source};
use crate::columns::Misfit;
use crate::columns::raw::RawColumn;
use crate::columns::to_arrow::ColumnReader;
use crate::guard::{Failure, broken};
use crate::session::Ready;

/// Where a batch ends at the latest. The value that fills it may have two thirds of the largest message, and text may grow by half:
/// Arrow's offsets reach further than that.
const MAX_BATCH_BYTES: usize = MAX_MESSAGE_BYTES / 3;

/// What feeds the arguments of one call of Execute.
pub struct Feed<'a> {
    arguments: Vec<FeedColumn<'a>>,
}

enum FeedColumn<'a> {
    Column(ColumnReader<'a>),
    /// A parameter's value, as one row.
    Constant(ArrayRef),
}

impl<'a> Feed<'a> {
    /// Of the rows at hand.
    pub fn new(
        ready: &Ready,
        parameters: &[Option<Parameter>],
        inputs: &[RawColumn<'a>],
    ) -> std::result::Result<Feed<'a>, Failure> {
        let mut arguments = Vec::with_capacity(ready.binding.arguments.len());
        for (source, argument) in ready.binding.arguments.iter().zip(&ready.call.signature.arguments) {
            let unbound = || Failure::from(broken("a column changed its type"));
            arguments.push(match source {
                Source::Column(column) => {
                    FeedColumn::Column(ColumnReader::new(inputs[*column], &argument.ty).ok_or_else(unbound)?)
                }
                Source::Parameter(number) => {
                    let parameter = parameters[*number].as_ref().expect("it was bound");
                    let length = parameter.value.as_ref().map_or(-1, |value| value.len() as i32).to_le_bytes();
                    let column = RawColumn::of_value(parameter.sql, parameter.value.as_deref(), &length);
                    let mut reader = ColumnReader::new(column, &argument.ty).ok_or_else(unbound)?;
                    FeedColumn::Constant(reader.read(0..1).map_err(|misfit| {
                        let message = format!("parameter \"@{}\" cannot be sent", parameter.name);
                        Error::new(Kind::OutOfRange, message).with_detail(misfit.sentence())
                    })?)
                }
            });
        }
        Ok(Feed { arguments })
    }

    /// How many rows from `first` on make a batch, at least one. Parameters count in every row, unless they travel once.
    pub fn batch_rows(
        &self,
        first: usize,
        rows: usize,
        (max_rows, max_bytes): (usize, usize),
        takes_constants: bool,
    ) -> usize {
        let max_bytes = max_bytes.min(MAX_BATCH_BYTES);
        let columns = || {
            self.arguments.iter().filter_map(|argument| match argument {
                FeedColumn::Column(reader) => Some(reader),
                FeedColumn::Constant(_) => None,
            })
        };
        let constants = self.arguments.iter().map(|argument| match argument {
            FeedColumn::Constant(value) if !takes_constants => value.get_array_memory_size(),
            _ => 0,
        });
        let fixed_bytes: usize = columns().filter_map(ColumnReader::element_bytes).chain(constants).sum();
        let last = rows.min(first + max_rows).min(first + max_bytes / fixed_bytes.max(1) + 1);
        let packed: Vec<_> = columns().filter(|reader| reader.element_bytes().is_none()).collect();
        if packed.is_empty() {
            return last - first;
        }
        let mut bytes = 0;
        for row in first..last {
            bytes += fixed_bytes + packed.iter().map(|reader| reader.packed_bytes(row)).sum::<usize>();
            if bytes >= max_bytes {
                return row + 1 - first;
            }
        }
        last - first
    }

    /// The arguments of the next rows that differ from row to row, in their order.
    pub fn read(&mut self, rows: Range<usize>) -> std::result::Result<Vec<ArrayRef>, Misfit> {
        let columns = self.arguments.iter_mut().filter_map(|argument| match argument {
            FeedColumn::Column(reader) => Some(reader.read(rows.clone())),
            FeedColumn::Constant(_) => None,
        });
        columns.collect()
    }

    /// The parameters.
    pub fn constants(&self) -> Constants {
        let constants = self.arguments.iter().enumerate().filter_map(|(position, argument)| match argument {
            FeedColumn::Column(_) => None,
            FeedColumn::Constant(value) => Some((position, value.clone())),
        });
        Constants::new(constants.collect())
    }
}

#[cfg(test)]
mod tests {
    use udf_types::types::Type;

    use super::*;
    use crate::columns::ServerType;

    #[test]
    fn batches_are_smaller_than_offsets_reach() {
        let rows = 400 << 20;
        // Nobody reads them, so that they take no memory.
        let values = vec![0_u8; rows];
        // SAFETY: so many are there.
        let column =
            unsafe { RawColumn::new(ServerType::TinyInt, 0, rows, values.as_ptr(), std::ptr::null()) }.unwrap();
        let reader = ColumnReader::new(column, &Type::Numeric).unwrap();
        let feed = Feed { arguments: vec![FeedColumn::Column(reader)] };
        // Each may become three digits.
        assert!(feed.batch_rows(0, rows, (rows, 1 << 30), true) < i32::MAX as usize / 3);
        assert_eq!(feed.batch_rows(0, rows, (rows, 1024), true), 1025);
    }
}
