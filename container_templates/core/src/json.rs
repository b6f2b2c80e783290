//! Batches and replies in JSON, `docs/protocol.md` §6.

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::Schema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use udf_codec::constants::Constants;
use udf_codec::json::{decode_column, encode_column};
use udf_codec::json_text::{Json, value_of};
use udf_types::signature::RowErrors;

use crate::error::CallError;
use crate::function::{Arrived, Function};

/// A batch of calls, in whichever form it came over HTTP.
pub(crate) struct BatchOfCalls {
    pub(crate) number: u64,
    /// Of an aggregate function: the name of the exchange, and what is to be done.
    pub(crate) exchange: String,
    pub(crate) step: String,
    pub(crate) row_errors: Option<RowErrors>,
    pub(crate) arrived: Arrived,
}

/// What becomes of it.
pub(crate) struct BatchAnswer {
    /// The reply's columns, a table function's in parts.
    pub(crate) parts: Vec<Vec<ArrayRef>>,
    pub(crate) micros: u64,
}

#[derive(Debug, Deserialize)]
struct Request {
    #[serde(default)]
    batch: u64,
    rows: usize,
    #[serde(default)]
    exchange: String,
    #[serde(default)]
    step: String,
    row_errors: Option<RowErrors>,
    #[serde(default)]
    constants: Vec<usize>,
}

/// A request that cannot be read.
pub(crate) fn unreadable(fact: impl std::fmt::Display) -> CallError {
    CallError::violation(format!("the request cannot be read: {fact}"))
}

/// Refuses positions of constants that are none of so many columns, or do not ascend.
pub(crate) fn check_constants(positions: &[usize], columns: usize) -> Result<(), CallError> {
    let are_right = positions.is_sorted_by(|a, b| a < b) && positions.iter().all(|position| *position < columns);
    if are_right { Ok(()) } else { Err(unreadable("its constants are not numbers of columns that ascend")) }
}

/// Reads a batch of calls.
pub(crate) fn read(function: &Function, body: &[u8]) -> Result<BatchOfCalls, CallError> {
    let call: Request = serde_json::from_slice(body).map_err(unreadable)?;
    let text = std::str::from_utf8(body).map_err(unreadable)?;
    // Numbers as they are written: a decimal is not to pass through a float.
    let Some(Json::Array(found)) = Json::parse(text).and_then(|mut request| request.take("columns")) else {
        return Err(unreadable("it has no columns"));
    };
    let signature = function.signature();
    let types = signature.call_types();
    if found.len() != types.len() {
        let fact = format!("{} takes {} columns, not {}", function.name(), types.len(), found.len());
        return Err(CallError::violation(fact));
    }
    check_constants(&call.constants, types.len())?;
    let (mut columns, mut constants) = (Vec::with_capacity(types.len()), Vec::new());
    for (position, (ty, values)) in types.iter().zip(found).enumerate() {
        let Json::Array(values) = values else {
            return Err(CallError::violation(format!("column {} is no list", position + 1)));
        };
        let values: Vec<Value> = values.into_iter().map(|value| value_of(ty, value)).collect();
        let is_constant = call.constants.contains(&position);
        let rows = if is_constant { 1 } else { call.rows };
        if values.len() != rows {
            let fact = format!("column {} has {} values for {rows} rows", position + 1, values.len());
            return Err(CallError::violation(fact));
        }
        let column = decode_column(ty, &values)
            .map_err(|fact| CallError::violation(format!("column {}: {fact}", position + 1)))?;
        if is_constant { constants.push((position, column)) } else { columns.push(column) }
    }
    let constants = Constants::new(constants);
    let schema: Schema = constants.schema_of_others(&signature.call_schema());
    let options = RecordBatchOptions::new().with_row_count(Some(call.rows));
    let others = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)
        .map_err(|cause| CallError::violation(cause.to_string()))?;
    Ok(BatchOfCalls {
        number: call.batch,
        exchange: call.exchange,
        step: call.step,
        row_errors: call.row_errors,
        arrived: Arrived { others, constants },
    })
}

/// Writes a reply.
pub(crate) fn write(function: &Function, call: &BatchOfCalls, BatchAnswer { parts, micros }: &BatchAnswer) -> String {
    let rows: usize = parts.iter().map(|part| part[0].len()).sum();
    let mut columns = Vec::new();
    for (position, ty) in function.reply_types(call.row_errors).iter().enumerate() {
        let mut texts = Vec::new();
        for part in parts.iter().filter(|part| !part[0].is_empty()) {
            let mut text = String::new();
            encode_column(&mut text, ty, &part[position]);
            texts.push(text[1..text.len() - 1].to_string());
        }
        columns.push(format!("[{}]", texts.join(",")));
    }
    let columns = columns.join(",");
    format!("{{\"batch\":{},\"rows\":{rows},\"micros\":{micros},\"columns\":[{columns}]}}", call.number)
}
