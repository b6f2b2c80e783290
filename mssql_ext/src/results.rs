//! What a call of Execute leaves for the host to read: columns, and the arrays of pointers to them.

use std::sync::atomic::AtomicPtr;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_select::nullif::nullif;
use udf_types::types::Type;

use crate::abi::SQL_NULLABLE;
use crate::binding::BoundResult;
use crate::columns::from_arrow::OutputColumn;
use crate::columns::raw::RawColumn;
use crate::columns::{Misfit, ServerType};

/// The result set of one call. It stays where it is until the next.
#[derive(Debug)]
pub struct Results {
    /// Columns that passed through, then the function's.
    columns: Vec<OutputColumn>,
    passthrough: usize,
    /// Where in its input column each passing column is.
    cursors: Vec<Cursor>,
    data_pointers: Vec<AtomicPtr<u8>>,
    indicator_pointers: Vec<AtomicPtr<i32>>,
}

/// A place in a packed column.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    row: usize,
    byte: usize,
}

impl Results {
    /// An empty result set with room for so many rows.
    pub fn new(passthrough: &[ServerType], results: &[BoundResult], rows: usize) -> Results {
        let types = passthrough.iter().copied().chain(results.iter().map(|result| result.sql));
        Results {
            columns: types.map(|sql| OutputColumn::new(sql, rows)).collect(),
            passthrough: passthrough.len(),
            cursors: vec![Cursor::default(); passthrough.len()],
            data_pointers: Vec::new(),
            indicator_pointers: Vec::new(),
        }
    }

    /// Lets rows of the input pass; they must not go back.
    pub fn pass(&mut self, inputs: &[RawColumn<'_>], rows: std::ops::Range<usize>) -> Result<(), Misfit> {
        for ((column, input), cursor) in self.columns.iter_mut().zip(inputs).zip(&mut self.cursors) {
            while cursor.row < rows.start {
                cursor.byte += input.length(cursor.row).unwrap_or(0);
                cursor.row += 1;
            }
            let end = column.append_raw(input, rows.clone(), cursor.byte)?;
            // The last row may pass again: a table function may have several results for it.
            if let Some(last) = rows.clone().last() {
                // The indicator of a fixed-size value is no size, and its place needs none.
                let length = if input.sql.element_bytes().is_some() { 0 } else { input.length(last).unwrap_or(0) };
                *cursor = Cursor { row: last, byte: end - length };
            }
        }
        Ok(())
    }

    /// Adds results of a function that is declared to give `declared`.
    pub fn add(&mut self, declared: &Type, results: &[BoundResult], array: &ArrayRef) -> Result<(), Misfit> {
        let columns = self.columns[self.passthrough..].iter_mut().zip(results);
        for ((column, result), part) in columns.zip(split(declared, array)) {
            column.append(&result.ty, &part).map_err(|misfit| Misfit {
                fact: format!("result column \"{}\": {}", result.name, misfit.fact),
                ..misfit
            })?;
        }
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, OutputColumn::rows)
    }

    /// Makes the arrays of pointers. Nothing may be added from now on.
    pub fn finish(&mut self) {
        self.data_pointers = self.columns.iter().map(|column| AtomicPtr::new(column.data())).collect();
        self.indicator_pointers = self.columns.iter().map(|column| AtomicPtr::new(column.indicators())).collect();
    }

    /// The array of pointers to values. An atomic pointer has a pointer's layout.
    pub fn data(&self) -> *mut *mut u8 {
        self.data_pointers.as_ptr().cast_mut().cast()
    }

    /// The array of pointers to indicators.
    pub fn indicators(&self) -> *mut *mut i32 {
        self.indicator_pointers.as_ptr().cast_mut().cast()
    }
}

/// The arrays of the result columns: of composite values, the attributes. One that is NULL has attributes that are NULL.
pub fn split(declared: &Type, array: &ArrayRef) -> Vec<ArrayRef> {
    // A range is a structure too, and a single column.
    let Some(composite) = array.as_struct_opt().filter(|_| matches!(declared, Type::Composite(_))) else {
        return vec![array.clone()];
    };
    let attributes = composite.columns().iter();
    let Some(nulls) = composite.nulls().filter(|nulls| nulls.null_count() > 0) else {
        return attributes.cloned().collect();
    };
    let is_null = BooleanArray::new(!nulls.inner(), None);
    attributes.map(|attribute| nullif(attribute, &is_null).expect("both are as long as the composite column")).collect()
}

/// What GetResultColumn tells: type code, size, digits, nullability. Always nullable: the schema holds for later chunks.
pub fn describe(sql: ServerType) -> (i16, u64, i16, i16) {
    (sql.code(), sql.column_size(), sql.decimal_digits(), SQL_NULLABLE)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StructArray;
    use arrow_schema::Field;

    use super::*;

    /// The values that JSON says, in a structure whose parts a server calls never NULL.
    fn never_null(ty: &Type, json: &str) -> ArrayRef {
        let values: Vec<serde_json::Value> = serde_json::from_str(json).unwrap();
        let column = udf_codec::json::decode_column(ty, &values).unwrap();
        let (fields, columns, nulls) = column.as_struct().clone().into_parts();
        let fields: Vec<Field> = fields.iter().map(|field| field.as_ref().clone().with_nullable(false)).collect();
        Arc::new(StructArray::try_new(fields.into(), columns, nulls).unwrap())
    }

    #[test]
    fn composite_values_alone_have_several_columns_however_their_parts_are_described() {
        let range = Type::from_name("range(int4)").unwrap();
        let array =
            never_null(&range, r#"[{"lower": 1, "upper": 5, "lower_inc": true, "upper_inc": false, "empty": false}]"#);
        assert_eq!(*split(&range, &array), *std::slice::from_ref(&array));
        let sql = ServerType::of_result(&range);
        let columns = [BoundResult { name: "f".to_string(), ty: range.clone(), sql }];
        let mut results = Results::new(&[], &columns, 1);
        results.add(&range, &columns, &array).unwrap();
        assert_eq!(results.rows(), 1);
        assert!(results.columns[0].indicator(0) > 4, "a text and no number");
        let pair = Type::from_name("(a int4, b text)").unwrap();
        let array = never_null(&pair, r#"[{"a": 1, "b": "x"}]"#);
        assert_eq!(split(&pair, &array), array.as_struct().columns());
        // A composite value within a single attribute.
        let outer = Type::from_name("(c (a int4, b text))").unwrap();
        let array = never_null(&outer, r#"[{"c": {"a": 1, "b": "x"}}]"#);
        assert_eq!(split(&outer, &array), array.as_struct().columns());
    }
}
