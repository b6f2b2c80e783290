//! Begin, Exec, ReScan, End of a Container Batch node.
//!
//! Exec: emit the next row of the oldest batch. If it has none left, form and send batches, row by row, until the window
//! is full or the child has no more rows; then wait for the oldest one's results (`calls.rs`). So the container computes one
//! batch while the next is formed. Rows leave in the order in which the child gave them.

use std::collections::VecDeque;

use pgrx::{PgMemoryContexts, PgTupleDesc, pg_guard, pg_sys};
use udf_client::driver::Driver;
use udf_client::pace::Pace;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_types::{Error, Kind};

use super::arguments::{Arguments, EqualArguments};
use super::calls::{self, forward, receive_next, send_batch, start_batch};
use super::kept::KeptColumn;
use super::private::{Input, Private};
use super::runs;
use super::sets::find_result;
use super::state::{Batch, BatchScanState, Call, Inner, Sent, SetCursor, border_of};
use crate::datum::argument_columns::{ArgumentColumns, Place, Row};
use crate::datum::to_arrow;
use crate::function::Role;
#[cfg(feature = "lift-ordinary")]
use crate::ordinary::stream::Stream;
use crate::pg::{catalog, list, nodes, raw, rights};
use crate::report::Border;
use crate::{function, report, settings};

/// CreateCustomScanState: allocates the node.
#[pg_guard]
pub unsafe extern "C-unwind" fn create_state(_scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: the struct starts with a CustomScanState, as the tag says; null pointers and zeros are valid in the rest.
    unsafe {
        let node = nodes::make::<BatchScanState>(pg_sys::NodeTag::T_CustomScanState);
        (*node).css.methods = super::EXEC_METHODS.as_ptr();
        (&raw mut (*node).border).write(Border::default());
        node.cast()
    }
}

/// BeginCustomScan: starts the child and compiles the calls' arguments. Leases nothing.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin(css: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, eflags: i32) {
    // SAFETY: the executor passes the node that create_state made, with its plan, in the query's memory context.
    unsafe {
        let node = css.cast::<BatchScanState>();
        let planstate = &raw mut (*css).ss.ps;
        let scan = (*planstate).plan.cast::<pg_sys::CustomScan>();
        // Rows are kept in batches, so the child need not go backwards for us. Whether it will be scanned again, it must know: a
        // sort that does not would read what is below it once more, and change what that changes.
        let not_needed = pg_sys::EXEC_FLAG_BACKWARD | pg_sys::EXEC_FLAG_MARK;
        (*planstate).lefttree = pg_sys::ExecInitNode((*scan).scan.plan.lefttree, estate, eflags & !(not_needed as i32));
        let private = Private::from_plan(scan);
        let is_explained_only = eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as i32 != 0;
        let mut calls = Vec::new();
        let mut looked_at = 0;
        let mut max_rows = usize::MAX;
        let mut declared_first_rows = usize::MAX;
        let entries = list::elements::<pg_sys::TargetEntry>((*scan).custom_scan_tlist).split_off(private.child_columns);
        let mut conditions = list::elements::<pg_sys::Expr>((*scan).custom_exprs);
        let bounds = conditions.split_off(entries.len());
        let is_bounded = private.is_bounded && !is_explained_only;
        let first_rows = if is_bounded { rows_asked_for(planstate, &bounds) } else { usize::MAX };
        let mut most_rows = u64::MAX;
        if private.is_bound_exact
            && let Ok(bound) = i64::try_from(first_rows)
        {
            most_rows = bound as u64;
            pg_sys::ExecSetTupleBound(bound, (*planstate).lefttree);
        }
        let is_stepwise = private.is_stepwise;
        let statement = (*estate).es_plannedstmt;
        let writes = (*statement).commandType != pg_sys::CmdType::CMD_SELECT || (*statement).hasModifyingCTE;
        let (mut shared_arguments, mut equal) = (Arguments::default(), EqualArguments::default());
        if entries.len() > 1 && !is_explained_only && settings::is_fusing() {
            for (number, entry) in entries.iter().enumerate() {
                equal.add_call((**entry).expr.cast(), private.inputs_of(number));
            }
        }
        for (number, (entry, condition)) in entries.into_iter().zip(conditions).enumerate() {
            let inputs = private.inputs_of(number);
            let is_awaited = |argument: usize| inputs.iter().any(|input: &Input| input.argument == argument);
            let expression = (*entry).expr.cast::<pg_sys::FuncExpr>();
            // As for expressions of other nodes, what they call is checked under EXPLAIN, too.
            rights::check_execute((*expression).funcid);
            let arguments = list::elements::<pg_sys::Expr>((*expression).args);
            if is_explained_only {
                let own = arguments.iter().enumerate().filter(|(i, _)| !is_awaited(*i));
                own.for_each(|(_, argument)| {
                    pg_sys::ExecInitExpr(*argument, planstate);
                });
                pg_sys::ExecInitExpr(condition, planstate);
                continue;
            }
            let function = report::unwrap(function::lookup_to_call((*expression).funcid));
            if function.role != Role::Direct {
                report::raise_error(&function.not_direct(), None);
            }
            let (mut expressions, mut shared) = (Vec::new(), Vec::new());
            let places: Vec<_> = arguments
                .iter()
                .enumerate()
                .map(|(i, argument)| {
                    if is_awaited(i) {
                        return Place::Awaited;
                    }
                    looked_at = looked_at.max(nodes::outer_column(*argument).map_or(0, |position| position + 1));
                    let noted = (&mut expressions, &mut shared);
                    shared_arguments.place((number, i), *argument, &function, planstate, &mut equal, noted)
                })
                .collect();
            let columns = ArgumentColumns::new(&function.arguments, &places);
            for input in inputs {
                let takes = function.signature.arguments.get(input.argument).map(|argument| &argument.ty);
                if takes != calls.get(input.call).map(|call: &Call| &call.function.signature.result) {
                    let message = format!("container function \"{}\" has changed since it was planned", function.name);
                    report::raise_error(&Error::new(Kind::SignatureMismatch, message), None);
                }
            }
            max_rows = max_rows.min(function.max_batch_rows());
            declared_first_rows = declared_first_rows.min(function.body.first_batch_rows.unwrap_or(Pace::FIRST_ROWS));
            let builder = BatchBuilder::new(&function.signature);
            // Gives null for null.
            let condition = pg_sys::ExecInitExpr(condition, planstate);
            let tables = (!writes).then(|| function.find_tables(catalog::current_user()));
            calls.push(Call {
                expression,
                tables,
                condition,
                is_strict: function.is_strict,
                expressions,
                shared,
                shared_bytes: 0,
                columns,
                builder,
                builder_bytes: 0,
                function,
                inputs: inputs.to_vec(),
                is_input: private.is_input(number),
                is_shown: true,
            });
        }
        if is_explained_only {
            return;
        }
        // What is not kept is NULL in every row.
        let nulls = (*(*css).ss.ss_ScanTupleSlot).tts_isnull;
        (0..private.child_columns).for_each(|i| *nulls.add(i) = true);
        let descriptor = PgTupleDesc::from_pg_copy(pg_sys::ExecGetResultType((*planstate).lefttree));
        let used = used_columns(scan, &private, calls.len());
        let kept: Vec<_> = used
            .iter()
            .filter(|position| **position < private.child_columns)
            .filter_map(|position| Some(KeptColumn::new(*position, descriptor.get(*position)?)))
            .collect();
        for (i, call) in calls.iter_mut().enumerate() {
            // What no other call takes is made an SQL value, and so checked, although nobody looks at it.
            call.is_shown = !call.is_input || used.contains(&(private.child_columns + i));
        }
        let deformed = kept.iter().map(|column| column.position() + 1).fold(looked_at, usize::max);
        // The leader is told so by its plan, a worker is what it is.
        let is_parallel = (*(*estate).es_plannedstmt).parallelModeNeeded || pg_sys::ParallelWorkerNumber >= 0;
        let depth = private.depth();
        let mut inner = Inner {
            child_columns: private.child_columns,
            kept,
            deformed: deformed as i16,
            query_context: (*estate).es_query_cxt,
            user: catalog::current_user(),
            driver: Driver::new(settings::stepwise_pace(), calls.len()),
            depth,
            calls,
            arguments: shared_arguments,
            max_rows,
            is_parallel,
            declared_first_rows,
            first_rows,
            most_rows,
            run: if private.may_be_stopped { estate } else { std::ptr::null() },
            is_stepwise_if_stopped: private.is_stepwise_if_stopped,
            is_stepwise,
            queue: VecDeque::new(),
            awaited: VecDeque::new(),
            forming: None,
            set: private.set.map(|join| SetCursor { join, part: None, has_matched: false, emits: None }),
            is_child_done: false,
            is_scanned_once: eflags & pg_sys::EXEC_FLAG_REWIND as i32 == 0
                && (*planstate).plan.as_ref().is_some_and(|plan| plan.extParam.is_null()),
            rows_read: 0,
            rows_ready: 0,
            spare_contexts: Vec::new(),
        };
        inner.driver.restart(inner.first_pace());
        (*node).inner = PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(inner);
    }
}

impl Inner {
    /// The pace of a scan that begins.
    fn first_pace(&self) -> Pace {
        if self.is_stepwise {
            return settings::stepwise_pace();
        }
        settings::pace(self.max_rows, Some(self.declared_first_rows), self.is_parallel)
            .with_first_rows(self.first_rows)
            .with_depth(self.depth)
    }
}

/// How many rows are asked for at first: a count and an offset, either of which may be null or NULL.
unsafe fn rows_asked_for(planstate: *mut pg_sys::PlanState, bounds: &[*mut pg_sys::Expr]) -> usize {
    let mut rows = [usize::MAX, 0];
    // SAFETY: the caller passes a node that is being begun, and expressions of type bigint without columns.
    unsafe {
        for (bound, rows) in bounds.iter().zip(&mut rows) {
            let state = pg_sys::ExecInitExpr(*bound, planstate);
            if state.is_null() {
                continue;
            }
            let mut is_null = false;
            let value = pg_sys::ExecEvalExpr(state, (*planstate).ps_ExprContext, &mut is_null);
            // Of a count below zero the Limit node complains.
            if !is_null {
                *rows = usize::try_from(value.value() as i64).unwrap_or(0);
            }
        }
    }
    rows[0].saturating_add(rows[1]).max(1)
}

/// The columns, of the child and behind them of the calls, that the node's target list or filter refers to, and nobody has said that
/// they are not used.
unsafe fn used_columns(scan: *mut pg_sys::CustomScan, private: &Private, calls: usize) -> Vec<usize> {
    // SAFETY: the caller passes a node of a valid plan, whose target list and filter refer to the scan tuple by INDEX_VAR.
    let used = unsafe {
        let plan = &raw const (*scan).scan.plan;
        nodes::columns_of(&[(*plan).targetlist.cast(), (*plan).qual.cast()], pg_sys::INDEX_VAR)
    };
    (0..private.child_columns + calls).filter(|i| used.contains(i) && !private.unused.contains(i)).collect()
}

/// ExecCustomScan: returns the next row that passes the filter.
///
/// This function and those below it up to [`advance`] call the executor as C code would: an error raised there jumps
/// straight over their frames, which hold nothing to be dropped, and arrives above as it was raised, its context included
/// ([`raw`]). What is done once per batch happens in the guarded functions that they call.
pub unsafe extern "C-unwind" fn exec(css: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the executor passes a begun node. The scan slot is virtual, with one column per entry of
    // custom_scan_tlist; its values stay valid until the next call, since a batch is let go only there.
    unsafe { report::with_context_of(border_of(css), || next_row(css)) }
}

unsafe fn next_row(css: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as in exec.
    unsafe {
        let inner = (*css.cast::<BatchScanState>()).inner;
        let planstate = &raw mut (*css).ss.ps;
        let context = (*planstate).ps_ExprContext;
        let slot = (*css).ss.ss_ScanTupleSlot;
        loop {
            // A filter may remove every row, and results may always be there already: then nothing below waits.
            raw::check_for_interrupts();
            let step = if (*inner).rows_ready > 0 { Step::Emit } else { advance(inner) };
            match step {
                Step::ReadRows => read_rows(inner, planstate),
                #[cfg(feature = "lift-ordinary")]
                Step::Answer => answer_calls(inner, context),
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

/// Reads rows of the child into the batch that is being formed, until it is full or there are no more.
unsafe fn read_rows(inner: *mut Inner, planstate: *mut pg_sys::PlanState) {
    // SAFETY: as in exec. Argument values live in the per-tuple memory until they are appended; rows are kept in the
    // batch's own. The batch is there, since advance asked for its rows, and nobody else looks at the state meanwhile.
    unsafe {
        let Some(batch) = (*inner).forming.as_mut().map(|batch| &raw mut *batch) else { return };
        let context = (*planstate).ps_ExprContext;
        let child = (*planstate).lefttree;
        let (calls, count) = ((*inner).calls.as_mut_ptr(), (*inner).calls.len());
        let before = pg_sys::CurrentMemoryContext;
        loop {
            raw::check_for_interrupts();
            let slot = raw::exec_proc_node(child);
            if slot.is_null() || (*slot).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                (*inner).is_child_done = true;
                return;
            }
            // Behind the last row there is no batch, and room would be made in vain.
            if (*batch).rows.count == 0 {
                make_room(inner);
            }
            raw::memory_context_reset((*context).ecxt_per_tuple_memory);
            (*context).ecxt_outertuple = slot;
            raw::deform(slot, (*inner).deformed);
            pg_sys::CurrentMemoryContext = (*context).ecxt_per_tuple_memory;
            let mut sent_bytes = 0;
            (*inner).arguments.begin_row();
            for i in 0..count {
                let call = &mut *calls.add(i);
                let sent = &mut *(*batch).sent.as_mut_ptr().add(i);
                add_call(call, &mut (*inner).arguments, sent, (*batch).rows.count, slot, context);
                sent_bytes += call.columns.bytes() + call.builder_bytes + call.shared_bytes;
            }
            pg_sys::CurrentMemoryContext = (*batch).context.as_ptr();
            (*batch).bytes += (*batch).rows.push(&(*inner).kept, slot);
            pg_sys::CurrentMemoryContext = before;
            if (*inner).rows_read + (*batch).rows.count as u64 >= (*inner).most_rows {
                (*inner).is_child_done = true;
                return;
            }
            if (*inner).driver.pace().is_full((*batch).rows.count, sent_bytes.max((*batch).bytes)) {
                return;
            }
        }
    }
}

/// Makes room for the arguments of a batch.
#[pg_guard]
unsafe extern "C-unwind" fn make_room(inner: *mut Inner) {
    // SAFETY: the caller passes the state, at which nobody else looks meanwhile.
    unsafe { calls::make_room(&mut *inner) }
}

/// Adds one call for the child's row, if it is to be made.
unsafe fn add_call(
    call: &mut Call,
    arguments: &mut Arguments,
    sent: &mut Sent,
    row: usize,
    slot: *mut pg_sys::TupleTableSlot,
    context: *mut pg_sys::ExprContext,
) {
    // SAFETY: as in read_rows. There is a value for each argument, and a column for each value.
    unsafe {
        if !call.condition.is_null() {
            let mut is_null = false;
            let holds = raw::exec_eval_expr(call.condition, context, &raw mut is_null);
            if is_null || holds.value() as u8 == 0 {
                return sent.push_skipped(row);
            }
        }
        arguments.evaluate(&call.expressions, context);
        let values = arguments.row(&call.columns, &*slot);
        let has_null = call.columns.has_null(&values);
        if has_null && call.is_strict {
            return sent.push_skipped(row);
        }
        if call.columns.has_attributes() {
            spread(&mut call.columns, &raw const values);
        }
        if sent.count == 0 && call.columns.unknown_constants().next().is_some() {
            take_constants(call, &raw const values);
        }
        call.columns.push(&values, has_null);
        if !call.columns.built().is_empty() {
            build(call, &raw const values);
        }
        if !call.shared.is_empty() {
            call.shared_bytes += arguments.push(&call.shared, &values, row);
        }
        sent.push_sent();
    }
}

/// Takes composite arguments apart.
#[pg_guard]
unsafe extern "C-unwind" fn spread(columns: *mut ArgumentColumns, row: *const Row) {
    // SAFETY: the caller passes columns and a row with a value of its type for each argument.
    unsafe { (*columns).spread(&*row) }
}

/// Appends the values that the builder has.
#[pg_guard]
unsafe extern "C-unwind" fn build(call: *mut Call, row: *const Row) {
    // SAFETY: the caller passes a call whose values are of the argument types, since the parser made them so.
    unsafe {
        let call = &mut *call;
        call.builder_bytes = 0;
        for &(i, source) in call.columns.built() {
            let column = call.builder.column(i);
            let (value, is_null) = ((*row).value(source), (*row).is_null(source));
            to_arrow::append(column, &call.function.arguments[i], value, is_null);
            call.builder_bytes += column.bytes();
        }
    }
}

/// Takes the values of constant arguments.
#[pg_guard]
unsafe extern "C-unwind" fn take_constants(call: *mut Call, row: *const Row) {
    // SAFETY: as in build.
    unsafe {
        let call = &mut *call;
        for (i, source) in call.columns.unknown_constants().collect::<Vec<_>>() {
            let sql_type = &call.function.arguments[i];
            let mut column = ColumnBuilder::new(&sql_type.ty);
            to_arrow::append(&mut column, sql_type, (*row).value(source), (*row).is_null(source));
            call.columns.set_constant(i, column.finish());
        }
    }
}

/// ReScanCustomScan: forgets what is out and starts anew. A stream with nothing out is kept.
#[pg_guard]
pub unsafe extern "C-unwind" fn rescan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the executor passes a begun node.
    unsafe {
        let inner = &mut *(*css.cast::<BatchScanState>()).inner;
        // A part of a subplan or of a join's inner side, though it looks at none of their parameters.
        inner.is_scanned_once = false;
        while let Some(batch) = inner.queue.pop_front().or_else(|| inner.forming.take()) {
            retire(inner, batch);
        }
        inner.awaited.clear();
        for (i, call) in inner.calls.iter_mut().enumerate() {
            // Batches are numbered per stream, and a half-formed one is void.
            let is_idle = inner.driver.lane(i).is_some_and(|stream| stream.in_flight() == 0);
            if !is_idle || call.builder_bytes > 0 {
                inner.driver.close(i);
                call.builder = BatchBuilder::new(&call.function.signature);
            }
            call.columns.clear();
            (call.builder_bytes, call.shared_bytes) = (0, 0);
        }
        inner.arguments.clear();
        if let Some(set) = &mut inner.set {
            (set.part, set.has_matched) = (None, false);
        }
        inner.driver.restart(inner.first_pace());
        inner.is_child_done = false;
        inner.rows_read = 0;
        inner.rows_ready = 0;
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
            (*inner).driver.close_all();
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
    /// Read rows of the child, and ask again.
    ReadRows,
    /// Make the calls that are awaited next, and ask again.
    #[cfg(feature = "lift-ordinary")]
    Answer,
    /// Emit the next row of the oldest batch.
    Emit,
    /// There are no more rows.
    End,
}

#[pg_guard]
unsafe extern "C-unwind" fn advance(inner: *mut Inner) -> Step {
    // SAFETY: the caller passes the state of a begun node.
    let inner = unsafe { &mut *inner };
    if !inner.run.is_null() {
        heed_run(inner);
    }
    loop {
        forward(inner);
        if let Some(forming) = &inner.forming {
            if forming.rows.count == 0 && !inner.is_child_done {
                return Step::ReadRows;
            }
            send_batch(inner);
        }
        if let Some(batch) = inner.queue.front()
            && batch.is_answered
        {
            let has_more = match inner.set {
                Some(_) => find_result(inner),
                None => {
                    inner.rows_ready = batch.rows.count - batch.next_row;
                    inner.rows_ready > 0
                }
            };
            if has_more {
                return Step::Emit;
            }
            if let Some(batch) = inner.queue.pop_front() {
                inner.driver.retire();
                retire(inner, batch);
            }
        }
        if inner.driver.may_send() && !inner.is_child_done {
            start_batch(inner);
        } else if inner.queue.is_empty() {
            if inner.is_scanned_once {
                // A plan may have thousands of such nodes, one for each partition.
                inner.driver.close_all();
            }
            return Step::End;
        } else if inner.queue.front().is_some_and(|batch| !batch.is_answered) {
            #[cfg(feature = "lift-ordinary")]
            if waiting_stream(inner).is_some() {
                return Step::Answer;
            }
            receive_next(inner);
        }
    }
}

/// Before the first row: reads no further ahead than the statement's run asks for.
fn heed_run(inner: &mut Inner) {
    if let Some(rows) = runs::rows_asked_for(inner.run) {
        inner.first_rows = inner.first_rows.min(rows);
        inner.is_stepwise |= inner.is_stepwise_if_stopped;
        inner.driver.restart(inner.first_pace());
    }
    inner.run = std::ptr::null();
}

/// The exchange whose answer is awaited next, if it has not answered.
#[cfg(feature = "lift-ordinary")]
fn waiting_stream(inner: &mut Inner) -> Option<&mut Stream> {
    let (_, call) = *inner.awaited.front()?;
    inner.driver.lane_mut(call).filter(|stream| stream.waits())
}

/// Makes the calls that are awaited next, from frames that own nothing.
#[cfg(feature = "lift-ordinary")]
unsafe fn answer_calls(inner: *mut Inner, context: *mut pg_sys::ExprContext) {
    // SAFETY: as in exec; nobody else looks at the state meanwhile.
    unsafe {
        if let Some(stream) = waiting_stream(&mut *inner).map(|stream| &raw mut *stream) {
            Stream::answer(stream, context);
        }
    }
}

/// Stores the oldest batch's next row in the scan slot: the child's columns, then the calls' results in `memory`.
unsafe fn load_row(inner: *mut Inner, slot: *mut pg_sys::TupleTableSlot, memory: pg_sys::MemoryContext) {
    // SAFETY: as in exec. The child's columns come first in the scan slot, then one per call.
    unsafe {
        let inner = &mut *inner;
        let Some(batch) = inner.queue.front_mut() else { return };
        let row = batch.next_row;
        let number = batch.first_row + row as u64;
        // The next result of a set may belong to the same row.
        if inner.set.as_ref().is_none_or(|set| set.emits.is_none()) {
            batch.next_row += 1;
        }
        inner.rows_ready = inner.rows_ready.saturating_sub(1);
        raw::memory_context_reset(memory);
        if (*slot).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 {
            raw::exec_clear_tuple(slot);
        }
        let (values, nulls) = ((*slot).tts_values, (*slot).tts_isnull);
        batch.rows.load(&inner.kept, row, values, nulls);
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = memory;
        let (values, nulls) = (values.add(inner.child_columns), nulls.add(inner.child_columns));
        let null = (pg_sys::Datum::from(0usize), true);
        if let Some(set) = &inner.set {
            (*values, *nulls) = match (set.emits, &set.part) {
                (Some(position), Some(part)) => part.results.datum(position, number),
                _ => null,
            };
        } else {
            for (i, (results, sent)) in batch.results.iter().zip(&batch.sent).enumerate() {
                (*values.add(i), *nulls.add(i)) = match (results, sent.position(row)) {
                    (Some(results), Some(position)) => results.datum(position, number),
                    _ => null,
                };
            }
        }
        pg_sys::CurrentMemoryContext = before;
        // ExecStoreVirtualTuple.
        (*slot).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
        (*slot).tts_nvalid = (*(*slot).tts_tupleDescriptor).natts as i16;
    }
}

/// Lets a batch go, and keeps its memory context for another.
fn retire(inner: &mut Inner, batch: Batch) {
    batch.context.reset();
    inner.spare_contexts.push(batch.context);
}
