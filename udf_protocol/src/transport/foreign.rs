//! What Flight servers of other families (arrow-udf, Databend) mean by their schemas, and their columns as this protocol's
//! (`docs/dialects.md`).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::codec::adapt::adapt;
use crate::error::{Error, Result};
use crate::signature::Signature;
use crate::types::EXTENSION_KEY;

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

/// A foreign reply with the fields of this protocol.
pub(super) fn adapt_reply(signature: &Signature, columns: RecordBatch) -> Result<RecordBatch> {
    let types = signature.reply_types();
    let function = &signature.function;
    if types.len() != columns.num_columns() {
        let found = columns.num_columns();
        return Err(Error::protocol(function, format!("Its reply has {found} columns, not {}.", types.len())));
    }
    let fields: Vec<_> = types.iter().map(|ty| ty.field(function)).collect();
    adapt_columns(&columns, Arc::new(Schema::new(fields))).map_err(|fact| Error::bad_result(function, fact))
}
