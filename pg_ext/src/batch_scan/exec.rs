//! Begin, Exec, ReScan, End of a Container Batch node.
//!
//! Exec: emit the next row of the oldest batch. If it has none left, form and send batches until the window is full or
//! the child has no more rows, then wait for the oldest one's results. So the container computes one batch while the
//! next is formed. Rows leave in the order in which the child gave them.

use std::collections::VecDeque;
use std::time::Instant;

use pgrx::{PgMemoryContexts, pg_guard, pg_sys};
use udf_protocol::batch::{BatchBuilder, BatchSizer};

use super::private::Private;
use super::state::{Batch, BatchScanState, Call, Counters, Inner, Sent};
use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow;
use crate::host::Backend;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::{list, nodes};
use crate::{function, report, session, settings};

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
        for entry in list::elements::<pg_sys::TargetEntry>((*scan).custom_scan_tlist).split_off(private.child_columns) {
            let expression = (*entry).expr.cast::<pg_sys::FuncExpr>();
            let function = report::unwrap(function::lookup((*expression).funcid));
            let arguments: Vec<_> = list::elements::<pg_sys::Expr>((*expression).args)
                .into_iter()
                .map(|argument| pg_sys::ExecInitExpr(argument, planstate))
                .collect();
            max_rows = max_rows.min(function.max_batch_rows());
            let empty = pg_sys::NullableDatum { value: pg_sys::Datum::from(0usize), isnull: true };
            let values = vec![empty; arguments.len()];
            let builder = BatchBuilder::new(&function.signature);
            calls.push(Call { function, arguments, values, builder, exchange: None });
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
            is_child_done: false,
            rows_read: 0,
            spare_contexts: Vec::new(),
        };
        (*node).inner = PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(inner);
    }
}

/// ExecCustomScan: returns the next row that passes the filter.
#[pg_guard]
pub unsafe extern "C-unwind" fn exec(css: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the executor passes a begun node. The scan slot is virtual, with one column per entry of
    // custom_scan_tlist; its values stay valid until the next call, since a batch is let go only there.
    unsafe {
        let inner = &mut *(*css.cast::<BatchScanState>()).inner;
        let planstate = &raw mut (*css).ss.ps;
        let context = (*planstate).ps_ExprContext;
        let slot = (*css).ss.ss_ScanTupleSlot;
        loop {
            pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            if !advance(inner, planstate) {
                return pg_sys::ExecClearTuple((*planstate).ps_ResultTupleSlot);
            }
            load_row(inner, slot, (*context).ecxt_per_tuple_memory);
            (*context).ecxt_scantuple = slot;
            if !(*planstate).qual.is_null() && !pg_sys::ExecQual((*planstate).qual, context) {
                if !(*planstate).instrument.is_null() {
                    (*(*planstate).instrument).nfiltered1 += 1.0;
                }
                continue;
            }
            if (*planstate).ps_ProjInfo.is_null() {
                return slot;
            }
            return pg_sys::ExecProject((*planstate).ps_ProjInfo);
        }
    }
}

/// ReScanCustomScan: forgets what is out and starts anew. A stream with nothing out is kept.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the executor passes a begun node.
    unsafe {
        let inner = &mut *(*css.cast::<BatchScanState>()).inner;
        while let Some(batch) = inner.queue.pop_front() {
            retire(inner, batch);
        }
        let mut max_rows = usize::MAX;
        for call in &mut inner.calls {
            max_rows = max_rows.min(call.function.max_batch_rows());
            // Batches are numbered per stream, and a half-formed one is void.
            let is_idle = call.exchange.as_ref().is_some_and(|exchange| exchange.in_flight() == 0);
            if !is_idle || call.builder.rows() > 0 {
                call.exchange = None;
                call.builder = BatchBuilder::new(&call.function.signature);
            }
        }
        inner.sizer = BatchSizer::new(max_rows, settings::batch_bytes());
        inner.is_child_done = false;
        inner.rows_read = 0;
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
            (*inner).spare_contexts.clear();
            (*inner).calls.clear();
        }
        let child = (*css).ss.ps.lefttree;
        if !child.is_null() {
            pg_sys::ExecEndNode(child);
        }
    }
}

/// Makes the oldest batch one with a row to emit; false if there are no more rows.
///
/// # Safety
/// `planstate` is the node's.
unsafe fn advance(inner: &mut Inner, planstate: *mut pg_sys::PlanState) -> bool {
    loop {
        if let Some(batch) = inner.queue.front() {
            if batch.results.is_some() && batch.next_row < batch.rows.len() {
                return true;
            }
            if batch.results.is_some()
                && let Some(batch) = inner.queue.pop_front()
            {
                retire(inner, batch);
            }
        }
        // Only one batch at first: a LIMIT may want no more than that.
        let window = if inner.counters.batches == 0 { 1 } else { inner.window };
        while inner.queue.len() < window && !inner.is_child_done {
            // SAFETY: the caller passes the node's own plan state.
            if let Some(batch) = unsafe { form_batch(inner, planstate) } {
                inner.queue.push_back(batch);
            }
        }
        if inner.queue.is_empty() {
            return false;
        }
        receive(inner);
    }
}

/// Reads rows of the child into a batch and sends its calls; none if there are no more rows.
///
/// # Safety
/// As for [`advance`].
unsafe fn form_batch(inner: &mut Inner, planstate: *mut pg_sys::PlanState) -> Option<Batch> {
    // SAFETY: the slots and contexts are those of a begun node; argument values live in the per-tuple memory until they
    // are appended, and rows are copied into the batch's own context.
    unsafe {
        let context = (*planstate).ps_ExprContext;
        let child = (*planstate).lefttree;
        let memory = match inner.spare_contexts.pop() {
            Some(memory) => memory,
            None => OwnedContext::new(inner.query_context),
        };
        let mut batch = Batch {
            context: memory,
            rows: Vec::new(),
            first_row: inner.rows_read + 1,
            sent: inner.calls.iter().map(|_| Sent::default()).collect(),
            results: None,
            next_row: 0,
        };
        let mut kept_bytes = 0;
        loop {
            pg_sys::check_for_interrupts!();
            let slot = pg_sys::ExecProcNode(child);
            if slot.is_null() || (*slot).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                inner.is_child_done = true;
                break;
            }
            pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            (*context).ecxt_outertuple = slot;
            let row = batch.rows.len();
            within((*context).ecxt_per_tuple_memory, || {
                for (call, sent) in inner.calls.iter_mut().zip(&mut batch.sent) {
                    append_call(call, sent, row, context);
                }
            });
            let tuple = within(batch.context.as_ptr(), || pg_sys::ExecCopySlotMinimalTuple(slot));
            kept_bytes += (*tuple).t_len as usize;
            batch.rows.push(tuple);
            let sent_bytes: usize = inner.calls.iter().map(|call| call.builder.bytes()).sum();
            if inner.sizer.is_full(batch.rows.len(), sent_bytes.max(kept_bytes)) {
                break;
            }
        }
        if batch.rows.is_empty() {
            inner.spare_contexts.push(batch.context);
            return None;
        }
        inner.rows_read += batch.rows.len() as u64;
        inner.counters.batches += 1;
        inner.sizer.grow();
        for (call, sent) in inner.calls.iter_mut().zip(&batch.sent) {
            if sent.count == 0 {
                continue;
            }
            inner.counters.calls += sent.count as u64;
            if call.exchange.is_none() {
                call.exchange = Some(session::client().open(report::unwrap(call.function.call())));
            }
            let numbered = call.builder.finish_batch();
            call.exchange.as_mut().expect("opened above").send(numbered);
        }
        Some(batch)
    }
}

/// Appends one row's arguments, unless the function is STRICT and one of them is NULL.
///
/// # Safety
/// The context's outer tuple is the child's row, and the current memory context may be written to.
unsafe fn append_call(call: &mut Call, sent: &mut Sent, row: usize, context: *mut pg_sys::ExprContext) {
    let mut has_null = false;
    for (value, argument) in call.values.iter_mut().zip(&call.arguments) {
        // SAFETY: the expression was compiled for this node and reads the context's outer tuple.
        value.value = unsafe { pg_sys::ExecEvalExpr(*argument, context, &mut value.isnull) };
        has_null |= value.isnull;
    }
    if has_null && call.function.is_strict {
        sent.push_skipped(row);
        return;
    }
    for (i, value) in call.values.iter().enumerate() {
        let oid = call.function.argument_oids[i];
        // SAFETY: the parser made the arguments to be of the function's argument types.
        unsafe { to_arrow::append(call.builder.column(i), oid, value.value, value.isnull) };
    }
    call.builder.finish_row();
    sent.push_sent();
}

/// Waits for the oldest batch's results.
fn receive(inner: &mut Inner) {
    let Some(batch) = inner.queue.front_mut() else { return };
    let start = Instant::now();
    let mut results = Vec::with_capacity(inner.calls.len());
    for (call, sent) in inner.calls.iter_mut().zip(&batch.sent) {
        let Some(exchange) = call.exchange.as_mut().filter(|_| sent.count > 0) else {
            results.push(None);
            continue;
        };
        match exchange.receive(&Backend) {
            Ok(reply) => {
                inner.counters.bytes_sent += reply.bytes_sent as u64;
                inner.counters.bytes_received += reply.bytes_received as u64;
                results.push(Some(ResultReader::new(&call.function, reply.columns.column(0).clone())));
            }
            Err(error) => {
                let name = &call.function.name;
                let place = match error.row() {
                    Some(position) => {
                        let row = batch.first_row + sent.row_of(position as usize) as u64;
                        format!("container function \"{name}\", row {row}")
                    }
                    None => {
                        let last_row = batch.first_row + batch.rows.len() as u64 - 1;
                        format!("container function \"{name}\", rows {} to {last_row}", batch.first_row)
                    }
                };
                report::raise_error(&error, Some(place));
            }
        }
    }
    batch.results = Some(results);
    inner.counters.wait_us += start.elapsed().as_micros() as u64;
}

/// Stores the oldest batch's next row in the scan slot: the child's columns, then the calls' results.
///
/// # Safety
/// The slot is the node's scan slot; `memory` lives until the row has been used.
unsafe fn load_row(inner: &mut Inner, slot: *mut pg_sys::TupleTableSlot, memory: pg_sys::MemoryContext) {
    let Some(batch) = inner.queue.front_mut() else { return };
    let row = batch.next_row;
    batch.next_row += 1;
    // SAFETY: the kept rows have the child's descriptor, whose columns come first in the scan slot.
    unsafe {
        pg_sys::ExecStoreMinimalTuple(batch.rows[row], inner.row_slot, false);
        pg_sys::slot_getallattrs(inner.row_slot);
        pg_sys::ExecClearTuple(slot);
        let (values, nulls) = ((*slot).tts_values, (*slot).tts_isnull);
        values.copy_from_nonoverlapping((*inner.row_slot).tts_values, inner.child_columns);
        nulls.copy_from_nonoverlapping((*inner.row_slot).tts_isnull, inner.child_columns);
        within(memory, || {
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
