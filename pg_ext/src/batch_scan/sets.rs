//! A call that returns a set: which result, of which row, the node emits next.
//!
//! The answer to a batch comes in parts. Each result names its row by the position among the rows that were sent, in
//! ascending order, so one cursor over rows and one over results walk along each other.

use std::rc::Rc;
use std::sync::Arc;

use arrow_array::Int32Array;
use arrow_array::cast::AsArray;
use udf_client::inbox::Reply;
use udf_types::{Error, Kind};

use super::calls::receive_reply;
use super::private::SetJoin;
use super::state::{Inner, Part};
use crate::datum::result_column::ResultColumn;
use crate::function::Function;
use crate::report;

/// A reply as a part of the answer.
pub(super) fn part_of(function: &Rc<Function>, reply: &Reply) -> Part {
    // An empty last part may lack its columns.
    let rows = match reply.columns.num_columns() {
        0 => Int32Array::from(Vec::<i32>::new()),
        _ => reply.columns.column(0).as_primitive().clone(),
    };
    let results = reply.columns.columns().last().cloned().unwrap_or_else(|| Arc::new(rows.clone()));
    Part { rows, results: ResultColumn::new(function, results), next: 0, is_last: reply.is_last }
}

/// Goes on to the oldest batch's next result of a call that returns a set; false if it has no more.
pub(super) fn find_result(inner: &mut Inner) -> bool {
    loop {
        let (Some(batch), Some(set)) = (inner.queue.front_mut(), &mut inner.set) else { return false };
        let is_done = batch.next_row >= batch.rows.count;
        let position = if is_done { None } else { batch.sent[0].position(batch.next_row) };
        if let Some(part) = &mut set.part {
            let next = (part.next < part.rows.len()).then(|| part.rows.value(part.next));
            let belongs = |next| position.is_some_and(|position| usize::try_from(next) == Ok(position));
            match next {
                Some(next) if belongs(next) => {
                    set.emits = Some(part.next);
                    part.next += 1;
                    set.has_matched = true;
                    return true;
                }
                Some(_) if is_done => {
                    let name = &inner.calls[0].function.name;
                    let message = format!("container function \"{name}\" broke the protocol");
                    let detail = "The row numbers of its reply are not in order.";
                    report::raise_error(&Error::new(Kind::ProtocolViolation, message).with_detail(detail), None);
                }
                // The row, or what is left of the rows, may have results in the next part.
                None if !part.is_last && (is_done || position.is_some()) => {
                    let reply = receive_reply(inner, 0, 0).expect("an answer ends with its last part");
                    let part = part_of(&inner.calls[0].function, &reply);
                    if let Some(set) = &mut inner.set {
                        set.part = Some(part);
                    }
                    continue;
                }
                _ => {}
            }
        }
        if is_done {
            set.part = None;
            return false;
        }
        let is_kept = !set.has_matched && set.join == SetJoin::Left;
        set.has_matched = false;
        if is_kept {
            set.emits = None;
            // load_row goes on to the next row.
            return true;
        }
        batch.next_row += 1;
    }
}
