//! Flight's messages as they come, for those who judge servers: what the client proper refuses or never asks for is shown.

use arrow_array::RecordBatch;
use arrow_flight::{Criteria, FlightData, FlightDescriptor, FlightInfo};
use arrow_schema::Schema;
use futures_util::stream;
use serde_json::Value;
use tonic::{Code, Status};
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch, decode_described_schema, decode_schema, encode_schema};
use udf_types::{Error, Result};

use crate::transport::MAX_ASIDE_BYTES;
use crate::transport::flight::Flight;
use crate::transport::grpc_status::status_error;

/// A function as a `FlightInfo` describes it, `docs/protocol.md` §3.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The name in the descriptor's path.
    pub function: String,
    /// How many of the fields are arguments.
    pub arguments: i64,
    /// The arguments and the result.
    pub schema: Schema,
    /// The endpoints, which are none.
    pub endpoints: usize,
}

impl Described {
    fn read(info: FlightInfo) -> Result<Described> {
        let path = info.flight_descriptor.as_ref().map(|descriptor| descriptor.path.clone()).unwrap_or_default();
        let (function, arguments, endpoints) = (path.join("/"), info.total_records, info.endpoint.len());
        let schema = decode_described_schema(&info.schema)
            .map_err(|cause| Error::protocol(&function, format!("Its schema cannot be read: {cause}.")))?;
        Ok(Described { function, arguments, schema, endpoints })
    }
}

impl Flight {
    /// The body of an action's first result.
    pub async fn act(&self, action: &str) -> Result<Vec<u8>> {
        self.action(action).await.map_err(|status| status_error("", &status))
    }

    /// What the server says of one function.
    pub async fn info(&self, function: &str) -> Result<Described> {
        let descriptor = FlightDescriptor::new_path(vec![function.to_string()]);
        let info = self.client(MAX_ASIDE_BYTES).get_flight_info(descriptor).await;
        Described::read(info.map_err(|status| status_error(function, &status))?.into_inner())
    }

    /// What the server says of all of its functions.
    pub async fn list(&self) -> Result<Vec<Described>> {
        let failed = |status| status_error("", &status);
        let mut flights =
            self.client(MAX_ASIDE_BYTES).list_flights(Criteria::default()).await.map_err(failed)?.into_inner();
        let mut found = Vec::new();
        while let Some(info) = flights.message().await.map_err(failed)? {
            found.push(Described::read(info)?);
        }
        Ok(found)
    }

    /// Sends batches at once, numbered from 0, and gives the metadata of every message that comes back; null if it has none.
    /// The message with the schema of the replies is left out.
    pub async fn converse(&self, function: &str, schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<Value>> {
        let (messages, end) = self.exchange_messages(function, schema, batches).await?;
        let mut found = Vec::new();
        for message in messages {
            // The schema comes first; some libraries write the first answer's metadata beside it as well.
            let is_schema = message.app_metadata.is_empty() || decode_schema(&message).is_ok();
            if !found.is_empty() || !is_schema {
                found.push(serde_json::from_slice(&message.app_metadata).unwrap_or_default());
            }
        }
        // docs/protocol.md §5: "a gRPC status ends an exchange as well".
        match end {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Sends one batch, and gives the columns that come back, in whatever layout they have.
    pub async fn answer(&self, function: &str, batch: &RecordBatch) -> Result<RecordBatch> {
        let (messages, end) = self.exchange_messages(function, &batch.schema(), std::slice::from_ref(batch)).await?;
        let unreadable =
            |cause: &dyn std::fmt::Display| Error::protocol(function, format!("A reply cannot be read: {cause}."));
        let mut messages = messages.into_iter();
        let schema = match (messages.next(), end) {
            (Some(message), _) => decode_schema(&message).map_err(|cause| unreadable(&cause))?,
            (None, Some(error)) => return Err(error),
            (None, None) => return Err(unreadable(&"there is none")),
        };
        match messages.find(|message| !message.data_header.is_empty()) {
            Some(message) => decode_batch(&message, schema).map_err(|cause| unreadable(&cause)),
            None => Err(unreadable(&"it has no columns")),
        }
    }

    /// What comes back to an exchange with these batches, and the status that ends it, if that is an error.
    async fn exchange_messages(
        &self,
        function: &str,
        schema: &Schema,
        batches: &[RecordBatch],
    ) -> Result<(Vec<FlightData>, Option<Error>)> {
        let failed = |status: Status| match status.code() {
            Code::NotFound => Error::function_not_found(function, "the server", &[]),
            _ => status_error(function, &status),
        };
        let mut encoder = BatchEncoder::default();
        let descriptor = FlightDescriptor::new_path(vec![function.to_string()]);
        let mut messages = vec![encode_schema(schema).with_descriptor(descriptor)];
        for (number, batch) in batches.iter().enumerate() {
            let message = encoder
                .encode(batch)
                .map_err(|cause| Error::protocol(function, format!("A batch could not be encoded: {cause}.")))?;
            messages.push(message.with_app_metadata(format!("{{\"batch\": {number}}}")));
        }
        let mut client = self.client(MAX_ASIDE_BYTES);
        let mut replies = match client.do_exchange(stream::iter(messages)).await {
            Ok(replies) => replies.into_inner(),
            Err(status) => return Ok((Vec::new(), Some(failed(status)))),
        };
        let mut found = Vec::new();
        loop {
            match replies.message().await {
                Ok(Some(message)) => found.push(message),
                Ok(None) => return Ok((found, None)),
                Err(status) => return Ok((found, Some(failed(status)))),
            }
        }
    }
}
