//! Rows of a followed table, all of them or those that a statement has inserted, as the query of a shared table has them: its condition and
//! its expressions are evaluated for each row, in the order in which they are written, and nothing else is read.

use pgrx::{PgTupleDesc, pg_sys};
use udf_codec::batch::BatchBuilder;

use super::follow::Definition;
use crate::datum::to_arrow;
use crate::pg::memory::within;
use crate::query::QueryColumn;

/// Rows, one after the other.
pub(super) struct FollowedRows {
    columns: Vec<QueryColumn>,
    input: Input,
    /// Whether all were read: a table's scan would begin anew.
    is_done: bool,
    slot: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
    context: *mut pg_sys::ExprContext,
    condition: Option<*mut pg_sys::ExprState>,
    expressions: Vec<*mut pg_sys::ExprState>,
}

/// What the rows are made of.
enum Input {
    /// A statement's transition table, and which place in it is ours.
    Inserted(*mut pg_sys::Tuplestorestate, i32),
    /// All of a table, as a snapshot sees it.
    All(pg_sys::TableScanDesc, pg_sys::Snapshot),
}

impl FollowedRows {
    /// Those that are made of a transition table. Raises an error if the current user must not call a function of the query.
    ///
    /// # Safety
    /// The definition is that of the view, and the table that it reads is `source`; both are open, and the transition table is of the
    /// latter.
    pub unsafe fn of_inserted(
        definition: &Definition,
        view: pg_sys::Relation,
        source: pg_sys::Relation,
        store: *mut pg_sys::Tuplestorestate,
    ) -> FollowedRows {
        // SAFETY: the caller says so. What is made lives until it is closed, or an error ends the statement.
        unsafe {
            let place = pg_sys::tuplestore_alloc_read_pointer(store, pg_sys::EXEC_FLAG_REWIND as i32);
            pg_sys::tuplestore_select_read_pointer(store, place);
            pg_sys::tuplestore_rescan(store);
            let slot = pg_sys::MakeSingleTupleTableSlot((*source).rd_att, &raw const pg_sys::TTSOpsMinimalTuple);
            FollowedRows::new(definition, view, Input::Inserted(store, place), slot)
        }
    }

    /// Those that are made of all rows that are there now, as far as transactions have committed and this one has written, whatever its
    /// own snapshot sees. Raises an error as above.
    ///
    /// No query is planned for them: a planner evaluates expressions of the table's owner, such as those of statistics and indexes.
    ///
    /// # Safety
    /// The definition is that of the view, and the table that it reads is `source`; both are open.
    pub unsafe fn of_all(definition: &Definition, view: pg_sys::Relation, source: pg_sys::Relation) -> FollowedRows {
        // SAFETY: as above. The snapshot stays registered until the rows are closed.
        unsafe {
            // With what the statement itself has changed.
            pg_sys::CommandCounterIncrement();
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let scan = pg_sys::table_beginscan(source, snapshot, 0, std::ptr::null_mut());
            let slot = pg_sys::table_slot_create(source, std::ptr::null_mut());
            FollowedRows::new(definition, view, Input::All(scan, snapshot), slot)
        }
    }

    unsafe fn new(
        definition: &Definition,
        view: pg_sys::Relation,
        input: Input,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> FollowedRows {
        // SAFETY: the caller passes a definition and its view, which is open.
        unsafe {
            let columns = PgTupleDesc::from_pg_copy((*view).rd_att).iter().map(QueryColumn::of).collect();
            let state = pg_sys::CreateExecutorState();
            let prepare = |expression: *mut pg_sys::Expr| pg_sys::ExecPrepareExpr(expression, state);
            let condition = Some(definition.condition()).filter(|condition| !condition.is_null()).map(prepare);
            let expressions = definition.expressions().into_iter().map(prepare).collect();
            let context = pg_sys::MakePerTupleExprContext(state);
            FollowedRows { columns, input, is_done: false, slot, state, context, condition, expressions }
        }
    }

    /// The columns.
    pub fn columns(&self) -> &[QueryColumn] {
        &self.columns
    }

    /// Adds all rows to a builder that was made for the columns' types, and calls `after` after each; how many. There are none the next
    /// time.
    pub fn fetch(&mut self, builder: &mut BatchBuilder, mut after: impl FnMut(&mut BatchBuilder)) -> usize {
        let mut count = 0;
        // SAFETY: what is read is open until it is closed; values live until the memory of a row is reset.
        unsafe {
            (*self.context).ecxt_scantuple = self.slot;
            let memory = (*self.context).ecxt_per_tuple_memory;
            loop {
                pgrx::check_for_interrupts!();
                if self.is_done || !self.read_row() {
                    self.is_done = true;
                    return count;
                }
                pg_sys::MemoryContextReset(memory);
                let is_added = within(memory, || self.add_row(builder));
                if is_added {
                    builder.finish_row();
                    after(builder);
                    count += 1;
                }
            }
        }
    }

    /// Reads the next row into the slot; false if there is none.
    unsafe fn read_row(&self) -> bool {
        // SAFETY: what is read is open.
        unsafe {
            match self.input {
                Input::Inserted(store, place) => {
                    // Whoever reads it beside this may have read elsewhere in it.
                    pg_sys::tuplestore_select_read_pointer(store, place);
                    pg_sys::tuplestore_gettupleslot(store, true, false, self.slot)
                }
                Input::All(scan, _) => {
                    pg_sys::table_scan_getnextslot(scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot)
                }
            }
        }
    }

    /// Adds the values of the row in the slot, if it meets the condition.
    unsafe fn add_row(&self, builder: &mut BatchBuilder) -> bool {
        // SAFETY: the expressions were made for the slot, and the builder for their types.
        unsafe {
            if let Some(condition) = self.condition {
                let (is_met, is_null) = self.evaluate(condition);
                if is_null || is_met.value() == 0 {
                    return false;
                }
            }
            for (i, (expression, column)) in self.expressions.iter().zip(&self.columns).enumerate() {
                let (value, is_null) = self.evaluate(*expression);
                to_arrow::append(builder.column(i), &column.sql_type, value, is_null);
            }
        }
        true
    }

    unsafe fn evaluate(&self, expression: *mut pg_sys::ExprState) -> (pg_sys::Datum, bool) {
        let (mut is_null, context) = (false, self.context);
        // SAFETY: the expression is ready, and has an evaluation function then.
        unsafe {
            let value = (*expression)
                .evalfunc
                .map(|evaluate| pg_sys::ffi::pg_guard_ffi_boundary(|| evaluate(expression, context, &raw mut is_null)));
            value.map_or((pg_sys::Datum::from(0usize), true), |value| (value, is_null))
        }
    }

    /// Frees what it has made.
    pub fn close(self) {
        // SAFETY: nothing of it is used afterwards.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            if let Input::All(scan, snapshot) = self.input {
                pg_sys::table_endscan(scan);
                pg_sys::UnregisterSnapshot(snapshot);
            }
            pg_sys::FreeExecutorState(self.state);
        }
    }
}
