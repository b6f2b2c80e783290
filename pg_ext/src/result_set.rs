//! Results of a function that returns a set, as PostgreSQL wants them from a call handler: all of them in a tuplestore,
//! which goes to disk beyond work_mem (SFRM_Materialize, fmgr/README).

use pgrx::{PgTupleDesc, pg_sys};
use udf_types::{Error, Kind};

use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow::deform;
use crate::datum::{Form, SqlType};
use crate::pg::memory::{OwnedContext, within};
use crate::pg::nodes;
use crate::report;

/// The results of one call.
pub struct ResultSet {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
    is_composite: bool,
    /// Where only some attributes of a composite result are columns: how many it has, and the positions of these.
    kept: Option<(usize, Vec<usize>)>,
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

    /// The same for a query that lists the columns, which are those attributes of a row type that were not dropped.
    ///
    /// # Safety
    /// As for [`ResultSet::new`].
    pub unsafe fn of_listed(fcinfo: pg_sys::FunctionCallInfo, result: &SqlType) -> ResultSet {
        let whole = result.descriptor();
        // SAFETY: the descriptor is palloc'd, and copied.
        let attributes = unsafe { PgTupleDesc::from_pg_copy(whole) };
        let kept = attributes.iter().enumerate().filter(|(_, attribute)| !attribute.attisdropped);
        let kept: Vec<usize> = kept.map(|(position, _)| position).collect();
        // SAFETY: the caller says so.
        unsafe {
            if kept.len() == attributes.len() {
                return ResultSet::new(fcinfo, result);
            }
            let set = ResultSet::of_rows(fcinfo, || without_dropped(whole, &kept));
            ResultSet { kept: Some((attributes.len(), kept)), ..set }
        }
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
            ResultSet { store, descriptor, is_composite: true, kept: None, row_context }
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
                match (datum, &self.kept) {
                    (Some(datum), Some((count, kept))) => {
                        let (mut values, mut nulls) = (vec![pg_sys::Datum::null(); *count], vec![true; *count]);
                        deform(datum, &mut values, &mut nulls);
                        let mut values: Vec<_> = kept.iter().map(|i| values[*i]).collect();
                        let mut nulls: Vec<_> = kept.iter().map(|i| nulls[*i]).collect();
                        let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
                        pg_sys::tuplestore_putvalues(self.store, self.descriptor, values, nulls);
                    }
                    (Some(datum), None) if self.is_composite => {
                        let header = datum.cast_mut_ptr::<pg_sys::HeapTupleHeaderData>();
                        let mut tuple = pg_sys::HeapTupleData {
                            t_len: (*header).t_choice.t_datum.datum_len_ as u32 >> 2,
                            t_data: header,
                            ..pg_sys::HeapTupleData::default()
                        };
                        pg_sys::tuplestore_puttuple(self.store, &mut tuple);
                    }
                    (datum, _) => {
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

/// A descriptor of the attributes at these positions, in the current memory context.
///
/// # Safety
/// `whole` is valid, and has them.
unsafe fn without_dropped(whole: pg_sys::TupleDesc, kept: &[usize]) -> pg_sys::TupleDesc {
    // SAFETY: the caller says so. Attributes count from one, and a row has at most 1,600.
    unsafe {
        let descriptor = pg_sys::CreateTemplateTupleDesc(kept.len() as i32);
        for (i, position) in kept.iter().enumerate() {
            pg_sys::TupleDescCopyEntry(descriptor, i as i16 + 1, whole, *position as i16 + 1);
        }
        descriptor
    }
}
