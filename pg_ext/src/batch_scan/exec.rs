//! Begin, Exec, ReScan, End of a Container Batch node.
//!
//! Exec: emit the next row of the oldest batch. If it has none left, form and send batches, row by row, until the window
//! is full or the child has no more rows; then wait for the oldest one's results. So the container computes one batch while the
//! next is formed. Rows leave in the order in which the child gave them.

use std::collections::VecDeque;
use std::time::Instant;

use pgrx::{PgMemoryContexts, pg_guard, pg_sys};
use udf_protocol::batch::{BatchBuilder, BatchSizer};
use udf_protocol::transport::Reply;

use super::private::Private;
use super::sets::{find_result, part_of};
use super::state::{Batch, BatchScanState, Call, Counters, Inner, Sent, SetCursor};
use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow;
use crate::function::Role;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::{catalog, list, nodes};
use crate::stream::Stream;
use crate::{function, report, settings};

/// CreateCustomScanState: allocates the node.
#[pg_guard]
pub unsafe extern "C-unwind" fn create_state(_scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: the struct starts with a CustomScanState, as the tag says; null pointers and zeros are valid in the rest.
    unsafe {
        let node = nodes::make::<BatchScanState>(pg_sys::NodeTag::T_CustomScanState);
        (*node).css.methods = super::EXEC_METHODS.as_ptr();
        node.cast()
    }
}

/// BeginCustomScan: starts the child and compiles the calls' arguments. Connects to nothing.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(css: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, eflags: i32) {
    // SAFETY: the executor passes the node that create_state made, with its plan, in the query's memory context.
    unsafe {
        let node = css.cast::<BatchScanState>();
        let planstate = &raw mut (*css).ss.ps;
        let scan = (*planstate).plan.cast::<pg_sys::CustomScan>();
        // Rows are kept in batches, so the child need not go backwards for us.
        let not_needed = pg_sys::EXEC_FLAG_REWIND | pg_sys::EXEC_FLAG_BACKWARD | pg_sys::EXEC_FLAG_MARK;
        (*planstate).lefttree = pg_sys::ExecInitNode((*scan).scan.plan.lefttree, estate, eflags & !(not_needed as i32));
        if eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 != 0 {
            return;
        }
        let private = Private::from_plan(scan);
        let mut calls = Vec::new();
        let mut max_rows = usize::MAX;
        let entries = list::elements::<pg_sys::TargetEntry>((*scan).custom_scan_tlist).split_off(private.child_columns);
        let conditions = list::elements::<pg_sys::Expr>((*scan).custom_exprs);
        for (entry, condition) in entries.into_iter().zip(conditions) {
            let expression = (*entry).expr.cast::<pg_sys::FuncExpr>();
            catalog::check_execute((*expression).funcid);
            let function = report::unwrap(function::lookup((*expression).funcid));
            if function.role != Role::Direct {
                report::raise_error(&function.not_direct(), None);
            }
            let arguments: Vec<_> = list::elements::<pg_sys::Expr>((*expression).args)
                .into_iter()
                .map(|argument| pg_sys::ExecInitExpr(argument, planstate))
                .collect();
            max_rows = max_rows.min(function.max_batch_rows());
            let empty = pg_sys::NullableDatum { value: pg_sys::Datum::from(0usize), isnull: true };
            let values = vec![empty; arguments.len()];
            let builder = BatchBuilder::new(&function.signature);
            // Gives null for null.
            let condition = pg_sys::ExecInitExpr(condition, planstate);
            calls.push(Call {
                function,
                oid: (*expression).funcid,
                condition,
                is_wanted: true,
                arguments,
                values,
                builder,
                stream: None,
            });
        }
        let child_descriptor = pg_sys::ExecGetResultType((*planstate).lefttree);
        let inner = Inner {
            child_columns: private.child_columns,
            window: settings::batch_window(),
            row_slot: pg_sys::ExecInitExtraTupleSlot(estate, child_descriptor, &raw const pg_sys::TTSOpsMinimalTuple),
            query_context: (*estate).es_query_cxt,
            calls,
            counters: Counters::default(),
            sizer: BatchSizer::new(max_rows, settings::batch_bytes()),
            queue: VecDeque::new(),
            forming: None,
            set: private.set.map(|join| SetCursor { join, part: None, has_matched: false, emits: None }),
            is_child_done: false,
            rows_read: 0,
            rows_emitted: 0,
            spare_contexts: Vec::new(),
        };
        (*node).inner = PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(inner);
    }
}

/// ExecCustomScan: returns the next row that passes the filter.
///
/// This function and `read_row` call the executor as C code would: an error raised there jumps straight over their
/// frames, which hold nothing to be dropped, and arrives above as it was raised, its context included. Everything that
/// owns memory happens in the guarded functions that they call.
pub unsafe extern "C-unwind" fn exec(css: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the executor passes a begun node. The scan slot is virtual, with one column per entry of
    // custom_scan_tlist; its values stay valid until the next call, since a batch is let go only there.
    unsafe { report::with_context(|| next_row(css)) }
}

unsafe fn next_row(css: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as in exec.
    unsafe {
        let inner = (*css.cast::<BatchScanState>()).inner;
        let planstate = &raw mut (*css).ss.ps;
        let context = (*planstate).ps_ExprContext;
        let slot = (*css).ss.ss_ScanTupleSlot;
        loop {
            match advance(inner) {
                Step::ReadRow => read_row(inner, planstate),
                Step::Emit => {
                    load_row(inner, slot, (*context).ecxt_per_tuple_memory);
                    (*context).ecxt_scantuple = slot;
                    if !(*planstate).qual.is_null() && !raw::exec_qual((*planstate).qual, context) {
                        if !(*planstate).instrument.is_null() {
                            (*(*planstate).instrument).nfiltered1 += 1.0;
                        }
                        continue;
                    }
                    if (*planstate).ps_ProjInfo.is_null() {
                        return slot;
                    }
                    return raw::exec_project((*planstate).ps_ProjInfo);
                }
                Step::End => return raw::exec_clear_tuple((*planstate).ps_ResultTupleSlot),
            }
        }
    }
}

/// Reads one row of the child into the batch that is being formed.
unsafe fn read_row(inner: *mut Inner, planstate: *mut pg_sys::PlanState) {
    // SAFETY: as in exec. Argument values live in the per-tuple memory until add_row has appended them.
    unsafe {
        let context = (*planstate).ps_ExprContext;
        let slot = raw::exec_proc_node((*planstate).lefttree);
        if slot.is_null() || (*slot).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
            (*inner).is_child_done = true;
            return;
        }
        raw::memory_context_reset((*context).ecxt_per_tuple_memory);
        (*context).ecxt_outertuple = slot;
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*context).ecxt_per_tuple_memory;
        let (calls, count) = ((*inner).calls.as_mut_ptr(), (*inner).calls.len());
        for i in 0..count {
            let call = calls.add(i);
            if !(*call).condition.is_null() {
                let mut is_null = false;
                let holds = raw::exec_eval_expr((*call).condition, context, &raw mut is_null);
                (*call).is_wanted = !is_null && holds.value() as u8 != 0;
                if !(*call).is_wanted {
                    continue;
                }
            }
            let (values, arguments) = ((*call).values.as_mut_ptr(), (*call).arguments.as_ptr());
            for j in 0..(*call).arguments.len() {
                let value = values.add(j);
                (*value).value = raw::exec_eval_expr(*arguments.add(j), context, &raw mut (*value).isnull);
            }
        }
        add_row(inner, slot);
        pg_sys::CurrentMemoryContext = before;
    }
}

/// The executor's functions without pgrx's guard, for frames that an error may jump over.
mod raw {
    use pgrx::pg_sys::{Datum, ExprContext, ExprState, MemoryContext, PlanState, ProjectionInfo, TupleTableSlot};

    unsafe extern "C-unwind" {
        #[link_name = "ExecProcNode__pgrx_cshim"]
        pub fn exec_proc_node(node: *mut PlanState) -> *mut TupleTableSlot;
        #[link_name = "ExecEvalExpr__pgrx_cshim"]
        pub fn exec_eval_expr(state: *mut ExprState, context: *mut ExprContext, is_null: *mut bool) -> Datum;
        #[link_name = "ExecQual__pgrx_cshim"]
        pub fn exec_qual(state: *mut ExprState, context: *mut ExprContext) -> bool;
        #[link_name = "ExecProject__pgrx_cshim"]
        pub fn exec_project(projection: *mut ProjectionInfo) -> *mut TupleTableSlot;
        #[link_name = "ExecClearTuple__pgrx_cshim"]
        pub fn exec_clear_tuple(slot: *mut TupleTableSlot) -> *mut TupleTableSlot;
        #[link_name = "MemoryContextReset"]
        pub fn memory_context_reset(context: MemoryContext);
    }
}

/// ReScanCustomScan: forgets what is out and starts anew. A stream with nothing out is kept.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the executor passes a begun node.
    unsafe {
        let inner = &mut *(*css.cast::<BatchScanState>()).inner;
        while let Some(batch) = inner.queue.pop_front().or_else(|| inner.forming.take()) {
            retire(inner, batch);
        }
        let mut max_rows = usize::MAX;
        for call in &mut inner.calls {
            max_rows = max_rows.min(call.function.max_batch_rows());
            // Batches are numbered per stream, and a half-formed one is void.
            let is_idle = call.stream.as_ref().is_some_and(|stream| stream.in_flight() == 0);
            if !is_idle || call.builder.rows() > 0 {
                call.stream = None;
                call.builder = BatchBuilder::new(&call.function.signature);
            }
        }
        if let Some(set) = &mut inner.set {
            (set.part, set.has_matched) = (None, false);
        }
        inner.sizer = BatchSizer::new(max_rows, settings::batch_bytes());
        inner.is_child_done = false;
        inner.rows_read = 0;
        inner.rows_emitted = 0;
        let child = (*css).ss.ps.lefttree;
        // A child whose parameters changed is rescanned by its next call.
        if (*child).chgParam.is_null() {
            pg_sys::ExecReScan(child);
        }
    }
}

/// EndCustomScan: ends the streams and the child. Tolerates a node that was not begun.
#[pg_guard]
pub unsafe extern "C-unwind" fn end(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the executor passes the node; the memory of `inner` itself goes with the query's context.
    unsafe {
        let inner = (*css.cast::<BatchScanState>()).inner;
        if !inner.is_null() {
            (*inner).queue.clear();
            (*inner).forming = None;
            (*inner).spare_contexts.clear();
            (*inner).calls.clear();
        }
        let child = (*css).ss.ps.lefttree;
        if !child.is_null() {
            pg_sys::ExecEndNode(child);
        }
    }
}

/// What to do next.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
enum Step {
    /// Read a row of the child, and ask again.
    ReadRow,
    /// Emit the next row of the oldest batch.
    Emit,
    /// There are no more rows.
    End,
}

#[pg_guard]
unsafe extern "C-unwind" fn advance(inner: *mut Inner) -> Step {
    // A filter may remove every row, and results may always be there already: then nothing below waits.
    pg_sys::check_for_interrupts!();
    // SAFETY: the caller passes the state of a begun node.
    let inner = unsafe { &mut *inner };
    loop {
        if let Some(forming) = &inner.forming {
            let sent_bytes: usize = inner.calls.iter().map(|call| call.builder.bytes()).sum();
            let is_full = inner.sizer.is_full(forming.rows.len(), sent_bytes.max(forming.bytes));
            if !is_full && !inner.is_child_done {
                return Step::ReadRow;
            }
            send_batch(inner);
        }
        if let Some(batch) = inner.queue.front()
            && batch.results.is_some()
        {
            let has_more = match inner.set {
                Some(_) => find_result(inner),
                None => batch.next_row < batch.rows.len(),
            };
            if has_more {
                return Step::Emit;
            }
            if let Some(batch) = inner.queue.pop_front() {
                retire(inner, batch);
            }
        }
        // Only one batch at first: a LIMIT may want no more than that.
        let window = if inner.rows_emitted == 0 { 1 } else { inner.window };
        if inner.queue.len() < window && !inner.is_child_done {
            start_batch(inner);
        } else if inner.queue.is_empty() {
            return Step::End;
        } else {
            receive(inner);
        }
    }
}

fn start_batch(inner: &mut Inner) {
    let memory = inner.spare_contexts.pop().unwrap_or_else(|| {
        // SAFETY: the query's context outlives the node, which drops its batches.
        unsafe { OwnedContext::new(inner.query_context) }
    });
    inner.forming = Some(Batch {
        context: memory,
        rows: Vec::new(),
        bytes: 0,
        first_row: inner.rows_read + 1,
        sent: inner.calls.iter().map(|_| Sent::default()).collect(),
        results: None,
        next_row: 0,
    });
}

/// Adds the child's row, and the argument values that were evaluated over it, to the batch that is being formed.
#[pg_guard]
unsafe extern "C-unwind" fn add_row(inner: *mut Inner, slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: the caller passes the state of a begun node and the child's row; values are of the argument types, since
    // the parser made them so. The row is copied into the batch's own context.
    unsafe {
        let inner = &mut *inner;
        let Some(batch) = &mut inner.forming else { return };
        for (call, sent) in inner.calls.iter_mut().zip(&mut batch.sent) {
            if !call.is_wanted || (call.function.is_strict && call.values.iter().any(|value| value.isnull)) {
                sent.push_skipped(batch.rows.len());
                continue;
            }
            for (i, value) in call.values.iter().enumerate() {
                to_arrow::append(call.builder.column(i), &call.function.arguments[i], value.value, value.isnull);
            }
            call.builder.finish_row();
            sent.push_sent();
        }
        let tuple = within(batch.context.as_ptr(), || pg_sys::ExecCopySlotMinimalTuple(slot));
        batch.bytes += (*tuple).t_len as usize;
        batch.rows.push(tuple);
    }
}

/// Sends the calls of the batch that was formed.
fn send_batch(inner: &mut Inner) {
    let Some(batch) = inner.forming.take() else { return };
    if batch.rows.is_empty() {
        inner.spare_contexts.push(batch.context);
        return;
    }
    inner.rows_read += batch.rows.len() as u64;
    inner.counters.batches += 1;
    inner.sizer.grow();
    for (call, sent) in inner.calls.iter_mut().zip(&batch.sent) {
        if sent.count == 0 {
            continue;
        }
        inner.counters.calls += sent.count as u64;
        let stream = match call.stream.take() {
            Some(stream) => stream,
            None => Stream::open(call.oid, report::unwrap(call.function.call())),
        };
        call.stream.insert(stream).send(call.builder.finish_batch());
    }
    inner.queue.push_back(batch);
}

/// Waits for the oldest batch's results, of a call that returns a set for their first part.
fn receive(inner: &mut Inner) {
    let mut results = Vec::with_capacity(inner.calls.len());
    for i in 0..inner.calls.len() {
        let is_sent = inner.queue.front().is_some_and(|batch| batch.sent[i].count > 0);
        let reply = if is_sent { receive_reply(inner, i) } else { None };
        let function = &inner.calls[i].function;
        match &mut inner.set {
            Some(set) => set.part = reply.map(|reply| part_of(function, &reply)),
            None => results.push(reply.map(|reply| ResultReader::new(function, reply.columns.column(0).clone()))),
        }
    }
    if let Some(batch) = inner.queue.front_mut() {
        batch.results = Some(results);
    }
}

/// Waits for the next reply to one call; none if the call has no stream.
pub(super) fn receive_reply(inner: &mut Inner, i: usize) -> Option<Reply> {
    let start = Instant::now();
    let call = &mut inner.calls[i];
    let stream = call.stream.as_mut()?;
    let outcome = stream.receive();
    inner.counters.wait_us += start.elapsed().as_micros() as u64;
    match outcome {
        Ok(reply) => {
            inner.counters.transports |= stream.transport().map_or(0, |transport| 1 << transport as u8);
            inner.counters.bytes_sent += reply.bytes_sent as u64;
            inner.counters.bytes_received += reply.bytes_received as u64;
            Some(reply)
        }
        Err(error) => {
            let name = &call.function.name;
            let place = inner.queue.front().map(|batch| match error.row() {
                Some(position) => {
                    let row = batch.first_row + batch.sent[i].row_of(position as usize) as u64;
                    format!("container function \"{name}\", row {row}")
                }
                None => {
                    let last_row = batch.first_row + batch.rows.len() as u64 - 1;
                    format!("container function \"{name}\", rows {} to {last_row}", batch.first_row)
                }
            });
            report::raise_error(&error, place)
        }
    }
}

/// Stores the oldest batch's next row in the scan slot: the child's columns, then the calls' results in `memory`.
#[pg_guard]
unsafe extern "C-unwind" fn load_row(
    inner: *mut Inner,
    slot: *mut pg_sys::TupleTableSlot,
    memory: pg_sys::MemoryContext,
) {
    // SAFETY: the caller passes the state and scan slot of a begun node. The kept rows have the child's descriptor,
    // whose columns come first in the scan slot.
    unsafe {
        let inner = &mut *inner;
        let Some(batch) = inner.queue.front_mut() else { return };
        let row = batch.next_row;
        // The next result of a set may belong to the same row.
        if inner.set.as_ref().is_none_or(|set| set.emits.is_none()) {
            batch.next_row += 1;
        }
        inner.rows_emitted += 1;
        pg_sys::MemoryContextReset(memory);
        pg_sys::ExecStoreMinimalTuple(batch.rows[row], inner.row_slot, false);
        pg_sys::slot_getallattrs(inner.row_slot);
        pg_sys::ExecClearTuple(slot);
        let (values, nulls) = ((*slot).tts_values, (*slot).tts_isnull);
        values.copy_from_nonoverlapping((*inner.row_slot).tts_values, inner.child_columns);
        nulls.copy_from_nonoverlapping((*inner.row_slot).tts_isnull, inner.child_columns);
        within(memory, || {
            if let Some(set) = &inner.set {
                let result = set.emits.zip(set.part.as_ref());
                let datum = result.and_then(|(position, part)| part.results.datum(position));
                *values.add(inner.child_columns) = datum.unwrap_or(pg_sys::Datum::from(0usize));
                *nulls.add(inner.child_columns) = datum.is_none();
            }
            for (i, (result, sent)) in batch.results.iter().flatten().zip(&batch.sent).enumerate() {
                let datum = match (result, sent.position(row)) {
                    (Some(reader), Some(position)) => reader.datum(position),
                    _ => None,
                };
                let column = inner.child_columns + i;
                *values.add(column) = datum.unwrap_or(pg_sys::Datum::from(0usize));
                *nulls.add(column) = datum.is_none();
            }
        });
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}

/// Lets a batch go, and keeps its memory context for another.
fn retire(inner: &mut Inner, batch: Batch) {
    // SAFETY: clearing a slot that does not own its tuple frees nothing; it must not point into the batch any longer.
    unsafe { pg_sys::ExecClearTuple(inner.row_slot) };
    batch.context.reset();
    inner.spare_contexts.push(batch.context);
}
