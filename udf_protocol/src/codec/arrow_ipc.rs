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
