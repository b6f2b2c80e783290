//! The calls of one stream as a server reads them, whose constants are dictionaries of one value (`docs/protocol.md` §4.10).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_flight::FlightData;
use arrow_ipc::root_as_message;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::arrow_ipc::{decode_batch_within, decode_dictionary_within, decode_schema};
use crate::constants::Constants;
use crate::unreadable::Unreadable;

/// Reads the messages of a stream of calls.
#[derive(Debug)]
pub struct CallDecoder {
    /// Of the whole columns.
    schema: SchemaRef,
    /// As it lies in the messages of batches, which have the constants' indexes.
    in_batches: SchemaRef,
    /// Of each constant its position, and the number by which its dictionary is named.
    constants: Vec<(usize, i64)>,
    values: HashMap<i64, ArrayRef>,
}

/// A batch of calls.
#[derive(Debug, Clone)]
pub struct DecodedCalls {
    /// The columns that are no constants.
    pub others: RecordBatch,
    /// The constants.
    pub constants: Constants,
}

impl CallDecoder {
    /// A reader of the stream that this message opens.
    ///
    /// # Errors
    /// If the message is no schema, or has dictionaries that are no constants.
    pub fn new(opening: &FlightData) -> Result<CallDecoder, ArrowError> {
        let schema = decode_schema(opening)?;
        let is_dictionary = |field: &Arc<Field>| matches!(field.data_type(), DataType::Dictionary(..));
        let mut constants = Vec::new();
        if schema.fields().iter().any(is_dictionary) {
            let malformed = |fact: &str| ArrowError::ParseError(fact.to_string());
            let message =
                root_as_message(&opening.data_header).map_err(|_| malformed("it is not a message of Arrow"))?;
            let fields = message.header_as_schema().and_then(|schema| schema.fields());
            for (position, field) in fields.iter().flatten().enumerate() {
                if let Some(dictionary) = field.dictionary() {
                    constants.push((position, dictionary.id()));
                }
            }
        }
        let fields = schema.fields().iter();
        let with_type = |field: &Arc<Field>, change: fn(&DataType, &DataType) -> Result<DataType, ArrowError>| {
            Ok::<_, ArrowError>(match field.data_type() {
                DataType::Dictionary(index, value) => {
                    Arc::new(field.as_ref().clone().with_data_type(change(index, value)?))
                }
                _ => field.clone(),
            })
        };
        let whole = fields.clone().map(|field| with_type(field, |_, value| Ok(value.clone())));
        let whole = whole.collect::<Result<Vec<_>, _>>()?;
        let in_batches = fields.map(|field| {
            with_type(field, |index, _| match index {
                DataType::Int8 => Ok(DataType::Int8),
                other => Err(ArrowError::SchemaError(format!("a constant has indexes of {other}, not Int8"))),
            })
        });
        let in_batches = in_batches.collect::<Result<Vec<_>, _>>()?;
        let with_fields = |fields| Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        Ok(CallDecoder {
            schema: with_fields(whole),
            in_batches: with_fields(in_batches),
            constants,
            values: HashMap::new(),
        })
    }

    /// The schema of the whole columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reads the next message: a batch of calls, or none if it brought a constant. Views may stand for `most` bytes.
    ///
    /// # Errors
    /// If it cannot be read, or the constants of a batch are not those that the stream brought.
    pub fn read(&mut self, message: &FlightData, most: usize) -> Result<Option<DecodedCalls>, Unreadable> {
        if self.constants.is_empty() {
            let others = decode_batch_within(message, self.schema.clone(), most)?;
            return Ok(Some(DecodedCalls { others, constants: Constants::default() }));
        }
        let header = root_as_message(&message.data_header).map_err(|_| "it is not a message of Arrow".to_string())?;
        if let Some(dictionary) = header.header_as_dictionary_batch() {
            let (id, is_delta) = (dictionary.id(), dictionary.isDelta());
            let position = self.constants.iter().find(|(_, known)| *known == id).map(|(position, _)| *position);
            let position = position.ok_or_else(|| "it has a dictionary of no column".to_string())?;
            let field = Field::new("", self.schema.field(position).data_type().clone(), true);
            let value = decode_dictionary_within(message, Arc::new(Schema::new(vec![field])), most)?;
            if is_delta || value.num_rows() != 1 {
                return Err("the dictionary of a constant does not have one value".to_string().into());
            }
            self.values.insert(id, value.column(0).clone());
            return Ok(None);
        }
        let batch = decode_batch_within(message, self.in_batches.clone(), most)?;
        let (mut constants, mut others, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        for (position, column) in batch.columns().iter().enumerate() {
            let Some((_, id)) = self.constants.iter().find(|(constant, _)| *constant == position) else {
                others.push(column.clone());
                fields.push(self.schema.fields()[position].clone());
                continue;
            };
            let indexes = column.as_primitive::<Int8Type>();
            if indexes.null_count() > 0 || indexes.values().iter().any(|index| *index != 0) {
                return Err("a constant has an index that is not 0".to_string().into());
            }
            let value = self.values.get(id).ok_or_else(|| "a constant has no dictionary".to_string())?;
            constants.push((position, value.clone()));
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let others = RecordBatch::try_new_with_options(schema, others, &options).map_err(|cause| cause.to_string())?;
        Ok(Some(DecodedCalls { others, constants: Constants::new(constants) }))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};

    use super::*;
    use crate::arrow_ipc::CallEncoder;
    use udf_types::signature::{Argument, Signature};
    use udf_types::types::Type;

    fn stream() -> (CallEncoder, FlightData, RecordBatch) {
        let argument = |ty: &Type| Argument { name: String::new(), ty: ty.clone() };
        let signature = Signature::scalar("f", [Type::Text, Type::Int8].iter().map(argument).collect(), Type::Int8);
        let (encoder, opening) = CallEncoder::new(signature.call_schema(), vec![0]);
        let schema = constant(None).schema_of_others(&signature.call_schema());
        let others = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]).unwrap();
        (encoder, opening, others)
    }

    fn constant(value: Option<&str>) -> Constants {
        Constants::new(vec![(0, Arc::new(StringArray::from(vec![value])) as ArrayRef)])
    }

    #[test]
    fn constants_are_those_of_the_batch_before_or_new_ones() {
        let (mut encoder, opening, others) = stream();
        let mut decoder = CallDecoder::new(&opening).unwrap();
        assert_eq!(decoder.schema().field(0).data_type(), &DataType::Utf8);
        for value in [Some("a"), Some("a"), None, Some("longer than an index")] {
            let messages = encoder.encode(&others, &constant(value)).unwrap();
            let read: Vec<_> = messages.iter().filter_map(|message| decoder.read(message, 1 << 20).unwrap()).collect();
            let [calls] = &read[..] else { panic!("one batch") };
            assert_eq!(calls.others.column(0), others.column(0));
            let found = calls.constants.at(0).unwrap().as_string::<i32>();
            assert_eq!(found.iter().collect::<Vec<_>>(), [value]);
        }
    }

    #[test]
    fn constants_that_never_came_are_refused() {
        let (mut encoder, opening, others) = stream();
        let messages = encoder.encode(&others, &constant(Some("a"))).unwrap();
        let mut decoder = CallDecoder::new(&opening).unwrap();
        let refused = decoder.read(messages.last().unwrap(), 1 << 20).unwrap_err();
        assert_eq!(refused, Unreadable::Misfit("a constant has no dictionary".to_string()));
        // Cut off wherever it may be, a message is read or refused.
        for message in &messages {
            for length in 0..message.data_header.len() {
                let header = message.data_header.slice(..length);
                let _ = decoder.read(&FlightData { data_header: header, ..message.clone() }, 1 << 20);
            }
            for length in 0..message.data_body.len() {
                let body = message.data_body.slice(..length);
                let _ = decoder.read(&FlightData { data_body: body, ..message.clone() }, 1 << 20);
            }
        }
    }
}
