//! An exchange whose batches the backend answers itself: arguments come out of columns, the function is called for each row,
//! and the results go into a column again.
//!
//! The calls are made from frames that own nothing, as [`raw`] demands, so that an error arrives above as it was raised.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::rc::Rc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use arrow_schema::{Field, Schema};
use pgrx::pg_guard;
use pgrx::pg_sys::{self, Datum, ExprContext, FmgrInfo, FunctionCallInfo, MemoryContext, NullableDatum};
use udf_client::arena::Writer;
use udf_client::driver::Lane;
use udf_client::inbox::Reply;
use udf_client::outbox::Outgoing;
use udf_codec::batch::{BatchBuilder, CallBatch};
use udf_types::Result;
use udf_types::signature::{Argument, Signature};
use udf_types::transport_name::TransportName;

use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow;
use crate::function::Function;
use crate::pg::memory::OwnedContext;
use crate::pg::{nodes, raw};

/// An exchange.
pub struct Stream {
    function: Rc<Function>,
    /// For each argument a function that would return it.
    arguments: Vec<Rc<Function>>,
    call: *mut pg_sys::FuncExpr,
    memory: MemoryContext,
    sent: VecDeque<CallBatch>,
    answered: VecDeque<Reply>,
}

/// One batch while its calls are made; in memory of its own.
#[repr(C)]
struct Work {
    memory: MemoryContext,
    /// Which a call of a function that returns a set empties.
    argument_memory: MemoryContext,
    rows: usize,
    count: usize,
    /// `rows` times `count` arguments.
    arguments: *mut NullableDatum,
    /// Results, of which row `places[i]` has the i-th.
    results: *mut NullableDatum,
    places: *mut i32,
    results_count: usize,
    results_room: usize,
    flinfo: *mut FmgrInfo,
    fcinfo: FunctionCallInfo,
    call: *mut pg_sys::FuncExpr,
    /// Of a function that returns a set.
    descriptor: pg_sys::TupleDesc,
    is_composite: bool,
    length: i16,
    is_by_value: bool,
}

unsafe extern "C-unwind" {
    fn ExecInitTableFunctionResult(
        expression: *mut pg_sys::Expr,
        context: *mut ExprContext,
        parent: *mut pg_sys::PlanState,
    ) -> *mut c_void;
    fn ExecMakeTableFunctionResult(
        state: *mut c_void,
        context: *mut ExprContext,
        argument_memory: MemoryContext,
        expected: pg_sys::TupleDesc,
        random_access: bool,
    ) -> *mut pg_sys::Tuplestorestate;
    fn tuplestore_gettupleslot(
        store: *mut pg_sys::Tuplestorestate,
        forward: bool,
        copy: bool,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> bool;
    fn tuplestore_end(store: *mut pg_sys::Tuplestorestate);
    fn MakeSingleTupleTableSlot(
        descriptor: pg_sys::TupleDesc,
        operations: *const pg_sys::TupleTableSlotOps,
    ) -> *mut pg_sys::TupleTableSlot;
    fn ExecFetchSlotHeapTupleDatum(slot: *mut pg_sys::TupleTableSlot) -> Datum;
    fn repalloc(pointer: *mut c_void, size: usize) -> *mut c_void;
}

impl Stream {
    /// An exchange for one call of a plan; `memory` lives as long as the plan runs.
    pub fn of_call(call: *mut pg_sys::FuncExpr, function: &Rc<Function>, memory: MemoryContext) -> Stream {
        let arguments = (0..function.arguments.len()).map(|i| Rc::new(function.of_argument(i))).collect();
        let (sent, answered) = (VecDeque::new(), VecDeque::new());
        Stream { function: function.clone(), arguments, call, memory, sent, answered }
    }

    /// Memory for the columns of a batch, of at least so many bytes.
    pub fn arena(&self, bytes: usize) -> Writer {
        Writer::own(bytes)
    }

    /// They are taken as they come.
    pub fn takes_constants(&self) -> bool {
        true
    }

    /// Batches sent and not yet received.
    pub fn in_flight(&self) -> usize {
        self.sent.len() + self.answered.len()
    }

    /// Whether the oldest batch is not answered yet.
    pub fn waits(&self) -> bool {
        self.answered.is_empty() && !self.sent.is_empty()
    }

    /// Makes the oldest batch's calls.
    ///
    /// # Safety
    /// As for all that calls [`raw`]; the exchange waits.
    pub unsafe fn answer(stream: *mut Stream, context: *mut ExprContext) {
        // SAFETY: the caller says so. Each step's memory is the work's, and outlives it.
        unsafe {
            let work = begin(stream);
            let before = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = (*work).memory;
            for row in 0..(*work).rows {
                raw::check_for_interrupts();
                if (*work).descriptor.is_null() {
                    make_call(work, row);
                } else {
                    make_set_call(work, row, context);
                }
            }
            pg_sys::CurrentMemoryContext = before;
            end(stream, work);
        }
    }
}

impl Lane for Stream {
    fn send(&mut self, batch: Outgoing) {
        self.sent.push_back(batch.batch);
    }

    /// The oldest batch's reply, which [`Stream::answer`] has made.
    fn receive(&mut self) -> Result<Reply> {
        Ok(self.answered.pop_front().expect("a batch is answered before it is received"))
    }

    fn is_answered(&mut self) -> bool {
        !self.answered.is_empty()
    }

    /// None: nothing travels.
    fn transport(&self) -> Option<TransportName> {
        None
    }
}

/// Takes the oldest batch's arguments out of their columns.
#[pg_guard]
unsafe extern "C-unwind" fn begin(stream: *mut Stream) -> *mut Work {
    // SAFETY: the caller passes a valid stream; what is allocated here is freed with its memory context.
    unsafe {
        let stream = &mut *stream;
        let batch = stream.sent.pop_front().expect("the exchange waits");
        let batch = crate::report::unwrap(batch.with_repeated_constants(&stream.function.signature));
        let memory = OwnedContext::new(stream.memory).as_ptr();
        crate::pg::memory::within(memory, || {
            let (rows, count) = (batch.columns.num_rows(), stream.arguments.len());
            let arguments = pg_sys::palloc0(rows * count * size_of::<NullableDatum>() + 1).cast::<NullableDatum>();
            for (i, argument) in stream.arguments.iter().enumerate() {
                let reader = ResultReader::new(argument, batch.columns.column(i).clone());
                for row in 0..rows {
                    let value = reader.datum(row, None);
                    let place = &mut *arguments.add(row * count + i);
                    place.isnull = value.is_none();
                    place.value = value.unwrap_or(Datum::from(0usize));
                }
            }
            let flinfo = pg_sys::palloc0(size_of::<FmgrInfo>()).cast::<FmgrInfo>();
            pg_sys::fmgr_info_cxt((*stream.call).funcid, flinfo, memory);
            (*flinfo).fn_expr = stream.call.cast();
            let size = size_of::<pg_sys::FunctionCallInfoBaseData>() + count * size_of::<NullableDatum>();
            let fcinfo: FunctionCallInfo = pg_sys::palloc0(size).cast();
            (*fcinfo).flinfo = flinfo;
            (*fcinfo).fncollation = (*stream.call).inputcollid;
            (*fcinfo).nargs = count as i16;
            let is_set = (*stream.call).funcretset;
            let room = rows.max(1);
            let (mut length, mut is_by_value) = (0, false);
            pg_sys::get_typlenbyval(stream.function.result.oid, &mut length, &mut is_by_value);
            let work = Work {
                memory,
                argument_memory: OwnedContext::new(memory).as_ptr(),
                rows,
                count,
                arguments,
                results: pg_sys::palloc0(room * size_of::<NullableDatum>()).cast(),
                places: pg_sys::palloc0(room * size_of::<i32>()).cast(),
                results_count: 0,
                results_room: room,
                flinfo,
                fcinfo,
                call: stream.call,
                descriptor: if is_set { stream.function.result.descriptor() } else { std::ptr::null_mut() },
                is_composite: pg_sys::type_is_rowtype(stream.function.result.oid),
                length,
                is_by_value,
            };
            let place = pg_sys::palloc0(size_of::<Work>()).cast::<Work>();
            place.write(work);
            place
        })
    }
}

unsafe fn make_call(work: *mut Work, row: usize) {
    // SAFETY: the caller passes a work that was begun, and one of its rows; there is room for each row's result.
    unsafe {
        let (fcinfo, count) = ((*work).fcinfo, (*work).count);
        let arguments = (*fcinfo).args.as_mut_ptr();
        std::ptr::copy_nonoverlapping((*work).arguments.add(row * count), arguments, count);
        (*fcinfo).isnull = false;
        let Some(function) = (*(*work).flinfo).fn_addr else { return };
        let value = function(fcinfo);
        push_result(work, row, NullableDatum { value, isnull: (*fcinfo).isnull });
    }
}

/// As a FunctionScan does it, of a call with constants.
unsafe fn make_set_call(work: *mut Work, row: usize, context: *mut ExprContext) {
    // SAFETY: as in make_call; PostgreSQL's functions are called as nodeFunctionscan.c calls them.
    unsafe {
        let call = nodes::copy_of((*work).call);
        (*call).args = std::ptr::null_mut();
        let declared = (*(*work).call).args;
        for i in 0..(*work).count {
            let argument = *(*work).arguments.add(row * (*work).count + i);
            let expression: *mut pg_sys::Node = (*(*declared).elements.add(i)).ptr_value.cast();
            let (mut length, mut is_by_value) = (0, false);
            pg_sys::get_typlenbyval(pg_sys::exprType(expression), &raw mut length, &raw mut is_by_value);
            let constant = pg_sys::makeConst(
                pg_sys::exprType(expression),
                pg_sys::exprTypmod(expression),
                pg_sys::exprCollation(expression),
                length.into(),
                argument.value,
                argument.isnull,
                is_by_value,
            );
            (*call).args = pg_sys::lappend((*call).args, constant.cast());
        }
        let state = ExecInitTableFunctionResult(call.cast(), context, std::ptr::null_mut());
        let store = ExecMakeTableFunctionResult(state, context, (*work).argument_memory, (*work).descriptor, false);
        if store.is_null() {
            return;
        }
        let slot = MakeSingleTupleTableSlot((*work).descriptor, &raw const pg_sys::TTSOpsMinimalTuple);
        while tuplestore_gettupleslot(store, true, true, slot) {
            raw::deform(slot, (*(*work).descriptor).natts as i16);
            let (value, isnull) = match (*work).is_composite {
                true => (ExecFetchSlotHeapTupleDatum(slot), false),
                false => (*(*slot).tts_values, *(*slot).tts_isnull),
            };
            let mut result = NullableDatum { value, isnull };
            if !isnull && !(*work).is_composite && !(*work).is_by_value {
                result.value = raw::datum_copy(value, false, (*work).length.into());
            }
            push_result(work, row, result);
        }
        tuplestore_end(store);
    }
}

unsafe fn push_result(work: *mut Work, row: usize, result: NullableDatum) {
    // SAFETY: as in make_call; the arrays grow before they are full.
    unsafe {
        let work = &mut *work;
        if work.results_count == work.results_room {
            work.results_room *= 2;
            work.results = repalloc(work.results.cast(), work.results_room * size_of::<NullableDatum>()).cast();
            work.places = repalloc(work.places.cast(), work.results_room * size_of::<i32>()).cast();
        }
        *work.results.add(work.results_count) = result;
        *work.places.add(work.results_count) = row as i32;
        work.results_count += 1;
    }
}

/// Puts the results into columns, as a reply.
#[pg_guard]
unsafe extern "C-unwind" fn end(stream: *mut Stream, work: *mut Work) {
    // SAFETY: the caller passes a work whose calls were made; the results are of the function's result type.
    unsafe {
        let stream = &mut *stream;
        let result = &stream.function.result;
        let argument = Argument { name: "result".to_string(), ty: result.ty.clone() };
        let signature = Signature::scalar("", vec![argument], result.ty.clone());
        let mut builder = BatchBuilder::new(&signature);
        crate::pg::memory::within((*work).memory, || {
            for i in 0..(*work).results_count {
                let NullableDatum { value, isnull } = *(*work).results.add(i);
                to_arrow::append(builder.column(0), result, value, isnull);
                builder.finish_row();
            }
        });
        let results = builder.finish_batch().columns.column(0).clone();
        let mut columns: Vec<ArrayRef> = vec![results];
        if !(*work).descriptor.is_null() {
            let places = (0..(*work).results_count).map(|i| *(*work).places.add(i));
            columns.insert(0, std::sync::Arc::new(places.collect::<Int32Array>()));
        }
        let fields: Vec<_> = columns.iter().map(|column| Field::new("", column.data_type().clone(), true)).collect();
        let columns = RecordBatch::try_new(std::sync::Arc::new(Schema::new(fields)), columns)
            .expect("columns of one length, of their own types");
        pg_sys::MemoryContextDelete((*work).memory);
        stream.answered.push_back(Reply {
            number: 0,
            columns,
            is_last: true,
            bytes_sent: 0,
            bytes_received: 0,
            bytes_needed: 0,
            compute_us: 0,
            repeated: 0,
            cached: 0,
            share: None,
        });
    }
}
