//! Results of a function that returns a set, as PostgreSQL wants them from a call handler: all of them in a tuplestore,
//! which goes to disk beyond work_mem (SFRM_Materialize, fmgr/README).

use pgrx::pg_sys;
use udf_types::{Error, Kind};

use crate::datum::from_arrow::ResultReader;
use crate::datum::{Form, SqlType};
use crate::pg::memory::{OwnedContext, within};
use crate::pg::nodes;
use crate::report;

/// The results of one call.
pub struct ResultSet {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
    is_composite: bool,
    row_context: OwnedContext,
}

impl ResultSet {
    /// An empty set of results of type `result`; PostgreSQL finds it when the call returns. Raises an error where the
    /// caller wants no set.
    ///
    /// # Safety
    /// `fcinfo` is that of a call of a function whose result is `result`.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, result: &SqlType) -> ResultSet {
        let is_composite = matches!(result.form, Form::Composite { .. });
        // SAFETY: the caller says so.
        ResultSet { is_composite, ..unsafe { ResultSet::of_rows(fcinfo, || result.descriptor()) } }
    }

    /// An empty set of rows of a descriptor, which is made in the query's memory context.
    ///
    /// # Safety
    /// `fcinfo` is that of a call of a function that returns such rows.
    pub unsafe fn of_rows(
        fcinfo: pg_sys::FunctionCallInfo,
        descriptor: impl FnOnce() -> pg_sys::TupleDesc,
    ) -> ResultSet {
        // SAFETY: the caller says so; what PostgreSQL keeps is made in the query's memory context.
        unsafe {
            let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let modes = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            if info.is_null()
                || nodes::tag(info) != pg_sys::NodeTag::T_ReturnSetInfo
                || (*info).allowedModes as u32 & modes == 0
            {
                let message = "set-valued function called in context that cannot accept a set";
                report::raise_error(&Error::new(Kind::UnsupportedType, message), None);
            }
            let context = (*(*info).econtext).ecxt_per_query_memory;
            let is_random = (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random != 0;
            let (store, descriptor) = within(context, || {
                let store = pg_sys::tuplestore_begin_heap(is_random, false, pg_sys::work_mem);
                (store, descriptor())
            });
            (*info).returnMode = modes;
            (*info).setResult = store;
            (*info).setDesc = descriptor;
            let row_context = OwnedContext::new(pg_sys::CurrentMemoryContext);
            ResultSet { store, descriptor, is_composite: true, row_context }
        }
    }

    /// Where a row's values are to be made; it is emptied when the row was added.
    pub fn row_context(&self) -> pg_sys::MemoryContext {
        self.row_context.as_ptr()
    }

    /// Adds a row of values, one for each column of the descriptor.
    pub fn add_row(&mut self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        pg_sys::check_for_interrupts!();
        // SAFETY: the values are of the columns' types; the tuplestore copies them.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        self.row_context.reset();
    }

    /// Adds row `row` of a column of results.
    pub fn add(&mut self, reader: &ResultReader, row: usize) {
        pg_sys::check_for_interrupts!();
        // SAFETY: a value of the result's type fits the descriptor; the tuplestore copies it.
        unsafe {
            within(self.row_context.as_ptr(), || {
                let datum = reader.datum(row, None);
                match datum {
                    Some(datum) if self.is_composite => {
                        let header = datum.cast_mut_ptr::<pg_sys::HeapTupleHeaderData>();
                        let mut tuple = pg_sys::HeapTupleData {
                            t_len: (*header).t_choice.t_datum.datum_len_ as u32 >> 2,
                            t_data: header,
                            ..pg_sys::HeapTupleData::default()
                        };
                        pg_sys::tuplestore_puttuple(self.store, &mut tuple);
                    }
                    datum => {
                        let count = usize::try_from((*self.descriptor).natts).unwrap_or(0);
                        let mut values = vec![datum.unwrap_or(pg_sys::Datum::from(0usize)); count];
                        let mut nulls = vec![datum.is_none(); count];
                        let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
                        pg_sys::tuplestore_putvalues(self.store, self.descriptor, values, nulls);
                    }
                }
            });
        }
        self.row_context.reset();
    }
}
