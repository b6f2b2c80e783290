//! What Flight servers of other families (arrow-udf, Databend) mean by their schemas, and their columns as this protocol's
//! (`docs/dialects.md`).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use udf_codec::adapt::{adapt, adapt_within, check_type};
use udf_codec::unreadable::Unreadable;
use udf_types::signature::Signature;
use udf_types::types::{EXTENSION_KEY, Type};
use udf_types::{Error, Result};

use crate::inbox::bytes_of_column;

/// Databend's word for how many of a function's fields are its arguments.
const DATABEND_INPUT_COUNT: &str = "x-databend-udf-input-count";

/// How many of a foreign function's fields are its arguments: arrow-udf says it as the number of records, Databend in the
/// schema's metadata, and Databend's older servers not at all.
pub(super) fn foreign_inputs(schema: &Schema, total: i64) -> usize {
    let fields = schema.fields().len();
    let said = schema.metadata().get(DATABEND_INPUT_COUNT).and_then(|text| text.parse().ok());
    let inputs = said.or_else(|| usize::try_from(total).ok().filter(|total| *total < fields));
    inputs.unwrap_or(fields.saturating_sub(1)).min(fields)
}

/// An arrow-udf server's schema as version 1 of its protocol means it, where that differs from what later versions mean:
/// there numeric is `LargeBinary` and json `LargeUtf8`, and nothing else says so.
pub(super) fn first_arrow_udf_schema(schema: &Schema, total: i64) -> Option<Schema> {
    fn meant(field: &Field) -> Field {
        let extension = match field.data_type() {
            DataType::LargeBinary => "arrowudf.decimal",
            DataType::LargeUtf8 => "arrowudf.json",
            DataType::List(element) => return field.clone().with_data_type(DataType::List(Arc::new(meant(element)))),
            DataType::Struct(fields) => {
                let fields = fields.iter().map(|field| meant(field)).collect();
                return field.clone().with_data_type(DataType::Struct(fields));
            }
            _ => return field.clone(),
        };
        if field.metadata().contains_key(EXTENSION_KEY) {
            return field.clone();
        }
        field.clone().with_metadata(HashMap::from([(EXTENSION_KEY.to_string(), extension.to_string())]))
    }
    let is_databend = schema.metadata().contains_key(DATABEND_INPUT_COUNT)
        || usize::try_from(total).is_ok_and(|total| total >= schema.fields().len());
    let first = Schema::new(schema.fields().iter().map(|field| meant(field)).collect::<Vec<_>>());
    (!is_databend && first.fields() != schema.fields()).then_some(first)
}

/// Columns of this protocol as the server's schema wants them; the error says what it cannot hold.
pub(super) fn adapt_columns(columns: &RecordBatch, schema: SchemaRef) -> std::result::Result<RecordBatch, String> {
    let adapted: std::result::Result<Vec<_>, String> =
        columns.columns().iter().zip(schema.fields()).map(|(column, field)| adapt(column, field.data_type())).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(columns.num_rows()));
    RecordBatch::try_new_with_options(schema, adapted?, &options).map_err(|cause| format!("{cause}."))
}

/// Refuses a foreign reply of types that are not the declared ones, before its values are read.
pub(super) fn check_foreign_types(signature: &Signature, found: &Fields) -> Result<()> {
    let (types, function) = (signature.reply_types(), &signature.function);
    if types.len() != found.len() {
        let found = found.len();
        return Err(Error::protocol(function, format!("Its reply has {found} columns, not {}.", types.len())));
    }
    let check = |(field, ty): (&Arc<Field>, &Type)| check_type(field.data_type(), &ty.data_type());
    found.iter().zip(&types).try_for_each(check).map_err(|fact| Error::bad_result(function, fact))
}

/// A foreign reply whose types were checked, with the fields of this protocol; what is made anew may have `most` bytes.
pub(super) fn adapt_reply(
    signature: &Signature,
    columns: &RecordBatch,
    most: usize,
) -> std::result::Result<RecordBatch, Unreadable> {
    let fields = signature.reply_types().into_iter().map(|ty| ty.field(&signature.function));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let (mut left, mut adapted) = (most, Vec::new());
    for (column, field) in columns.columns().iter().zip(schema.fields()) {
        let column = adapt_within(column, field.data_type(), left)?;
        left = left.saturating_sub(bytes_of_column(&column));
        adapted.push(column);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(columns.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), adapted, &options).map_err(|cause| format!("{cause}.").into())
}
