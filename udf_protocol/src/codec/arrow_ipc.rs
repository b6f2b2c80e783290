//! Record batches to Flight messages and back (Arrow IPC encapsulated messages, Arrow columnar format).
//!
//! One batch is always one message: a server answers per message, so a split batch would be two calls.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};

/// The message that opens a stream of batches.
pub fn encode_schema(schema: &Schema) -> FlightData {
    SchemaAsIpc::new(schema, &IpcWriteOptions::default()).into()
}

/// Reads the message that opens a stream.
pub fn decode_schema(message: &FlightData) -> Result<SchemaRef, ArrowError> {
    Ok(Arc::new(Schema::try_from(message)?))
}

/// Encodes batches of one stream, none of which holds dictionaries.
#[derive(Debug, Default)]
pub struct BatchEncoder {
    context: IpcWriteContext,
}

impl BatchEncoder {
    /// One batch as one message.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<FlightData, ArrowError> {
        let mut dictionaries = DictionaryTracker::new(true);
        let (_, encoded) = IpcDataGenerator::default().encode(
            batch,
            &mut dictionaries,
            &IpcWriteOptions::default(),
            &mut self.context,
        )?;
        Ok(encoded.into())
    }
}

/// Reads one batch. The bytes are checked: offsets, lengths and UTF-8.
pub fn decode_batch(message: &FlightData, schema: SchemaRef) -> Result<RecordBatch, ArrowError> {
    // The reader checks much but panics on the rest, for example a buffer that lies outside the body.
    let read = || arrow_flight::utils::flight_data_to_arrow_batch(message, schema, &HashMap::new());
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(ArrowError::IpcError("the message is damaged".to_string())))
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;
    use crate::types::Type;

    #[test]
    fn schemas_that_nest_too_deep_are_refused() {
        // Made with more stack than they are read with.
        let of_depth = |depth: usize| {
            let make = move || {
                let item = |ty| Arc::new(Field::new("item", ty, true));
                let ty = (0..depth).fold(DataType::Int32, |ty, _| DataType::List(item(ty)));
                encode_schema(&Schema::new(vec![Field::new("x", ty, true)]))
            };
            std::thread::Builder::new().stack_size(64 << 20).spawn(make).unwrap().join().unwrap()
        };
        let messages = [16, 17, 40, 2_000].map(of_depth);
        let reading = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
            let read = |message: &FlightData| {
                let schema = decode_schema(message).map_err(|cause| cause.to_string())?;
                Type::from_foreign_field(schema.field(0)).map_err(|error| error.to_string())
            };
            let [deepest, deeper, much_deeper, endless] = &messages;
            assert!(read(deepest).is_ok());
            for message in [deeper, much_deeper, endless] {
                assert!(read(message).unwrap_err().len() < 1000);
            }
        });
        reading.unwrap().join().unwrap();
    }
}
