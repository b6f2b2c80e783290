//! What the calls of a node take of the child's row, where several of them take the same: an expression is evaluated once per row, and a
//! value that has to be converted is converted once. The calls then share the column.
//!
//! ```text
//!   f(t), g(t), h(lower(t), t)  ▶  columns: t for f, g and h; lower(t) is h's own
//! ```
//!
//! Calls may be made for different rows (conditions, NULL for STRICT functions). A shared column has a row if any of its calls is made for
//! it, and nothing is evaluated for other rows. A call that leaves out some of its rows gets a copy without these.
//!
//! Values that fit into a Datum stay each call's own: they are stored where its container reads them, which is as cheap as looking for them.

use std::collections::HashMap;
use std::rc::Rc;

use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_select::take::take;
use pgrx::{pg_guard, pg_sys};
use udf_client::inbox::bytes_of_column;
use udf_codec::batch::{ColumnBuilder, Given};
use udf_types::Result;

use super::private::Input;
use super::state::Sent;
use crate::datum::argument_columns::{ArgumentColumns, Place, Row, Source, is_converted};
use crate::datum::to_arrow;
use crate::function::Function;
use crate::pg::{list, nodes, raw, reserve};

/// Expressions that are compared with each other, at most.
const MOST_COMPARED: usize = 100;

/// What the calls take.
#[derive(Default)]
pub struct Arguments {
    // for the plan
    /// What is evaluated over the child's row.
    states: Vec<*mut pg_sys::ExprState>,
    /// What several calls have.
    columns: Vec<SharedColumn>,

    // for the row
    /// The expressions' values.
    values: Vec<pg_sys::Datum>,
    /// Whether these are NULL.
    nulls: Vec<bool>,
    /// For which row each was evaluated.
    evaluated: Vec<u64>,
    /// The row at hand, counted over all scans of the node.
    row: u64,
}

/// A column of arguments that are equal.
struct SharedColumn {
    // for the plan
    /// Which of the [`EqualArguments`] it has.
    equal: usize,
    /// One of the functions, and its argument.
    function: Rc<Function>,
    argument: usize,
    source: Source,

    // for the batch
    columns: ArgumentColumns,
    /// The values that `columns` leaves to it.
    builder: ColumnBuilder,
    /// The batch's rows that it has.
    rows: Vec<u32>,
    bytes: usize,

    // for the row
    /// The last row that was added, and its bytes.
    added: u64,
    row_bytes: usize,
}

/// A shared column of a batch.
pub struct Taken {
    values: ArrayRef,
    rows: Vec<u32>,
}

/// Which arguments of a node's calls are equal, and how many each.
#[derive(Default)]
pub struct EqualArguments {
    /// Per call and argument.
    numbers: Vec<Vec<Option<usize>>>,
    uses: Vec<usize>,
    columns: HashMap<usize, Vec<(*mut pg_sys::Expr, usize)>>,
    expressions: Vec<(*mut pg_sys::Expr, usize)>,
    /// Where each is evaluated.
    evaluated: HashMap<usize, usize>,
}

impl EqualArguments {
    /// Adds the arguments of the next call, but for those that are results of others, or the same in every row.
    ///
    /// # Safety
    /// It is a valid call of a finished plan.
    pub unsafe fn add_call(&mut self, call: *const pg_sys::FuncExpr, inputs: &[Input]) {
        // SAFETY: the caller says so.
        let arguments = unsafe { list::elements::<pg_sys::Expr>((*call).args) };
        let numbers = arguments.into_iter().enumerate().map(|(i, argument)| {
            let is_awaited = inputs.iter().any(|input| input.argument == i);
            // SAFETY: as above.
            unsafe { if is_awaited || nodes::is_constant(argument) { None } else { self.add(argument) } }
        });
        let numbers = numbers.collect();
        self.numbers.push(numbers);
    }

    /// Its number; none if it is evaluated for each call.
    unsafe fn add(&mut self, argument: *mut pg_sys::Expr) -> Option<usize> {
        // SAFETY: the caller passes a valid expression.
        unsafe {
            let known = match nodes::outer_column(argument) {
                Some(position) => self.columns.entry(position).or_default(),
                None if self.expressions.len() < MOST_COMPARED && may_be_evaluated_once(argument) => {
                    &mut self.expressions
                }
                None => return None,
            };
            let found = known.iter().find(|(other, _)| pg_sys::equal(argument.cast(), (*other).cast()));
            let number = found.map_or(self.uses.len(), |(_, number)| *number);
            if number == self.uses.len() {
                known.push((argument, number));
                self.uses.push(0);
            }
            self.uses[number] += 1;
            Some(number)
        }
    }

    /// The number of an argument that others equal.
    fn shared(&self, call: usize, argument: usize) -> Option<usize> {
        let number = (*self.numbers.get(call)?.get(argument)?)?;
        (self.uses[number] > 1).then_some(number)
    }
}

/// Whether an expression has one value for a row, however often it is evaluated, and nobody sees how often.
unsafe fn may_be_evaluated_once(expression: *mut pg_sys::Expr) -> bool {
    // SAFETY: the caller passes a valid expression. Of constraints of domains PostgreSQL does not say what they call.
    unsafe {
        let node = expression.cast();
        let is_checked = &mut |node: *mut pg_sys::Node| nodes::tag(node) == pg_sys::NodeTag::T_CoerceToDomain;
        !pg_sys::contain_mutable_functions(node) && !pg_sys::contain_subplans(node) && !nodes::has(node, is_checked)
    }
}

impl Arguments {
    /// Where an argument of a call is in a row. Notes in `expressions` what is to be evaluated for it, and in `shared` of which shared column
    /// its values are.
    ///
    /// # Safety
    /// It is that argument of a call of `function`, in the plan of `planstate`, which is being begun.
    pub unsafe fn place(
        &mut self,
        (call, argument): (usize, usize),
        expression: *mut pg_sys::Expr,
        function: &Rc<Function>,
        planstate: *mut pg_sys::PlanState,
        equal: &mut EqualArguments,
        (expressions, shared): (&mut Vec<usize>, &mut Vec<(usize, usize)>),
    ) -> Place {
        let number = equal.shared(call, argument);
        // SAFETY: the caller passes a valid expression.
        let source = match unsafe { nodes::outer_column(expression) } {
            Some(position) => Source::column(position),
            None => {
                let known = number.and_then(|number| equal.evaluated.get(&number).copied());
                // SAFETY: as above.
                let place = known.unwrap_or_else(|| unsafe { self.begin(expression, planstate) });
                if let Some(number) = number {
                    equal.evaluated.insert(number, place);
                }
                expressions.push(place);
                Source::evaluated(place)
            }
        };
        // SAFETY: as above.
        if unsafe { nodes::is_constant(expression) } {
            return Place::Constant(source);
        }
        let sql_type = &function.arguments[argument];
        let Some(number) = number.filter(|_| is_converted(sql_type)) else { return Place::Own(source) };
        let is_it = |column: &SharedColumn| {
            let other = &column.function.arguments[column.argument];
            column.equal == number && other.oid == sql_type.oid && other.ty == sql_type.ty
        };
        let known = self.columns.iter().position(is_it);
        shared.push((argument, known.unwrap_or(self.columns.len())));
        if known.is_none() {
            self.columns.push(SharedColumn::new(number, function, argument, source));
        }
        Place::Shared(source)
    }

    unsafe fn begin(&mut self, expression: *mut pg_sys::Expr, planstate: *mut pg_sys::PlanState) -> usize {
        // SAFETY: the caller passes an expression of the node's plan.
        self.states.push(unsafe { pg_sys::ExecInitExpr(expression, planstate) });
        self.values.push(pg_sys::Datum::null());
        self.nulls.push(true);
        self.evaluated.push(0);
        self.states.len() - 1
    }

    /// Goes to the next row.
    pub fn begin_row(&mut self) {
        self.row += 1;
    }

    /// Evaluates what was not evaluated for the row.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The context has the row.
    pub unsafe fn evaluate(&mut self, expressions: &[usize], context: *mut pg_sys::ExprContext) {
        for number in expressions {
            // SAFETY: these are numbers of expressions.
            unsafe {
                if *self.evaluated.get_unchecked(*number) != self.row {
                    let (state, is_null) = (*self.states.get_unchecked(*number), self.nulls.get_unchecked_mut(*number));
                    *self.values.get_unchecked_mut(*number) = raw::exec_eval_expr(state, context, is_null);
                    *self.evaluated.get_unchecked_mut(*number) = self.row;
                }
            }
        }
    }

    /// The values of the row in a slot, which were evaluated, for a call's columns.
    pub fn row(&self, columns: &ArgumentColumns, slot: &pg_sys::TupleTableSlot) -> Row {
        columns.row(slot, &self.values, &self.nulls)
    }

    /// Adds the row, the batch's `at`-th, to the columns that a call shares; gives the bytes that it has in these.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The row has all arguments of the call, of their types.
    pub unsafe fn push(&mut self, shared: &[(usize, usize)], row: &Row, at: usize) -> usize {
        let mut bytes = 0;
        for (_, number) in shared {
            let Some(column) = self.columns.get_mut(*number) else { continue };
            if column.added != self.row {
                // SAFETY: the caller says so.
                unsafe {
                    column.columns.push(row, row.is_null(column.source));
                    if !column.columns.built().is_empty() {
                        build(column, row);
                    }
                }
                let all = column.columns.bytes() + column.builder.bytes();
                column.row_bytes = all.saturating_sub(column.bytes);
                column.bytes = all;
                column.rows.push(at as u32);
                column.added = self.row;
            }
            bytes += column.row_bytes;
        }
        bytes
    }

    /// The columns of a batch. They are empty afterwards.
    pub fn take(&mut self) -> Vec<Taken> {
        let columns = self.columns.iter_mut().map(|column| {
            column.bytes = 0;
            let values = match column.columns.take().0.pop() {
                Some(Given::Column(values)) => values,
                _ => column.builder.finish(),
            };
            Taken { values, rows: std::mem::take(&mut column.rows) }
        });
        columns.collect()
    }

    /// Forgets the values of a batch.
    pub fn clear(&mut self) {
        self.take();
    }
}

impl SharedColumn {
    fn new(equal: usize, function: &Rc<Function>, argument: usize, source: Source) -> SharedColumn {
        let sql_type = &function.arguments[argument];
        let columns = ArgumentColumns::new(std::slice::from_ref(sql_type), &[Place::Own(source)]);
        let (function, builder) = (Rc::clone(function), ColumnBuilder::new(&sql_type.ty));
        let (rows, bytes, added, row_bytes) = (Vec::new(), 0, 0, 0);
        SharedColumn { equal, function, argument, source, columns, builder, rows, bytes, added, row_bytes }
    }
}

impl Taken {
    /// The column for a call that was made for `sent` of the batch's rows.
    ///
    /// Fails where memory has no room for a copy.
    pub fn of(&self, sent: &Sent, rows: usize) -> Result<ArrayRef> {
        // A call's rows are among the column's.
        if sent.count == self.values.len() {
            return Ok(self.values.clone());
        }
        reserve::check_room(bytes_of_column(&self.values))?;
        let mut places = self.rows.iter().zip(0..);
        let place_of = |row| places.find(|(own, _)| **own as usize == row).map(|(_, place)| place);
        let places: UInt32Array = sent.rows(rows).filter_map(place_of).collect::<Vec<u32>>().into();
        Ok(take(&self.values, &places, None).expect("these are rows of the column, which are no more than it has"))
    }
}

/// Appends a value that the builder has.
#[pg_guard]
unsafe extern "C-unwind" fn build(column: *mut SharedColumn, row: *const Row) {
    // SAFETY: the caller passes a column and a row whose value is of its type, since the parser made it so.
    unsafe {
        let column = &mut *column;
        let (value, is_null) = ((*row).value(column.source), (*row).is_null(column.source));
        to_arrow::append(&mut column.builder, &column.function.arguments[column.argument], value, is_null);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StringArray;
    use arrow_array::cast::AsArray;

    use super::*;

    /// What was sent of rows of which those that are false were left out.
    fn sent(rows: [bool; 5]) -> Sent {
        let mut sent = Sent::default();
        for (row, is_sent) in rows.into_iter().enumerate() {
            if is_sent { sent.push_sent() } else { sent.push_skipped(row) }
        }
        sent
    }

    #[test]
    fn each_call_gets_its_rows_of_a_shared_column() {
        let texts = StringArray::from(vec![Some("a"), None, Some("c"), Some("e")]);
        let taken = Taken { values: Arc::new(texts), rows: vec![0, 1, 2, 4] };
        for (rows, expected) in [
            ([true, true, true, false, true], vec![Some("a"), None, Some("c"), Some("e")]),
            ([false, true, true, false, false], vec![None, Some("c")]),
            ([true, false, false, false, true], vec![Some("a"), Some("e")]),
            ([false, false, false, false, true], vec![Some("e")]),
        ] {
            let column = taken.of(&sent(rows), 5).unwrap();
            assert_eq!(column.as_string::<i32>().iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_call_that_leaves_out_no_row_shares_the_values() {
        let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let taken = Taken { values: values.clone(), rows: vec![1, 3] };
        assert!(Arc::ptr_eq(&taken.of(&sent([false, true, false, true, false]), 5).unwrap(), &values));
        let all = Taken { values: values.clone(), rows: vec![0, 1] };
        assert!(Arc::ptr_eq(&all.of(&Sent { count: 2, positions: None }, 2).unwrap(), &values));
    }
}
