//! What a Flight server says of itself and of its functions (`docs/protocol.md` §2 and §3), whether it speaks this protocol or not.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use tonic::Code;
use udf_codec::arrow_ipc::decode_described_schema;
use udf_codec::wire::{PROTOCOL_VERSION, ServerInfo};
use udf_types::signature::Signature;
use udf_types::{Error, Result};

use crate::transport::flight::Flight;
use crate::transport::foreign::{first_arrow_udf_schema, foreign_inputs};
use crate::transport::grpc_status::{is_denial, is_of_transport, is_transport_failure, say, status_error, words_of};

/// What a server's greeting says of exchanges.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub(super) protocol: u32,
    pub(super) constants: bool,
}

/// A function of a server that does not speak this protocol.
pub(super) struct Foreign {
    pub(super) signature: Signature,
    /// The arguments, as the server wants them.
    pub(super) arguments: SchemaRef,
}

impl Flight {
    fn read_greeting(body: &[u8]) -> Result<ServerInfo> {
        let info: ServerInfo = serde_json::from_slice(body)
            .map_err(|cause| Error::protocol("", format!("Its greeting cannot be read: {cause}.")))?;
        // docs/protocol.md §2: "a client refuses a version that it does not know".
        if info.protocol > PROTOCOL_VERSION {
            return Err(Error::protocol("", format!("It speaks version {} of the protocol.", info.protocol)));
        }
        Ok(info)
    }

    /// The server's greeting; of a server that does not speak this protocol one of version 0.
    pub(super) async fn say_hello(&self) -> Result<ServerInfo> {
        match self.action("transship.hello").await {
            Ok(body) => Flight::read_greeting(&body),
            Err(status) if is_transport_failure(&status) => {
                Err(Error::unreachable(&self.endpoint.to_string(), say(&status)))
            }
            Err(status) if is_denial(&status) => {
                Err(Error::refused(&format!("the server at \"{}\"", self.endpoint), words_of(&status)))
            }
            Err(status) if is_of_transport(&status) => Err(status_error("", &status)),
            // docs/protocol.md §2: "any other error means a server of the arrow-udf family".
            Err(_) => Ok(ServerInfo { protocol: 0, server: "arrow-udf".to_string(), ..ServerInfo::default() }),
        }
    }

    /// The signature that the server says a function has, and more of one that does not speak this protocol.
    pub(super) async fn describe(&self, function: &str) -> Result<(Signature, Option<Foreign>)> {
        let info = match self.info_of(function).await {
            Ok(info) => info,
            Err(status) if is_transport_failure(&status) => {
                return Err(Error::unreachable(&self.endpoint.to_string(), say(&status)));
            }
            Err(status) if is_of_transport(&status) => return Err(status_error(function, &status)),
            Err(status) if status.code() == Code::NotFound => {
                let offered = self.say_hello().await.map(|info| info.functions).unwrap_or_default();
                return Err(Error::function_not_found(
                    function,
                    &format!("the server at \"{}\"", self.endpoint),
                    &offered,
                ));
            }
            Err(status) => {
                return Err(Error::protocol(function, format!("GetFlightInfo failed: {}.", status.message())));
            }
        };
        let total = info.total_records;
        let schema = decode_described_schema(&info.schema)
            .map_err(|cause| Error::protocol(function, format!("Its schema cannot be read: {cause}.")))?;
        if self.is_foreign(function).await? {
            let inputs = foreign_inputs(&schema, total);
            let signature = match first_arrow_udf_schema(&schema, total) {
                Some(first) if !self.says_arrow_udf_version(function).await? => {
                    Signature::from_foreign_schema(function, &first, inputs)?
                }
                _ => Signature::from_foreign_schema(function, &schema, inputs)?,
            };
            let arguments = Arc::new(Schema::new(schema.fields()[..inputs].to_vec()));
            return Ok((signature.clone(), Some(Foreign { signature, arguments })));
        }
        let inputs = usize::try_from(total)
            .map_err(|_| Error::protocol(function, "It does not say how many inputs the function has."))?;
        Ok((Signature::from_schema(function, &schema, inputs)?, None))
    }

    /// What the server says. It is asked once.
    pub(super) async fn said(&self, function: &str) -> Result<Said> {
        let ask = async || match self.action("transship.hello").await {
            Ok(body) => Flight::read_greeting(&body)
                .map(|info| Said { protocol: info.protocol, constants: info.constants && info.protocol > 0 }),
            Err(status) if is_of_transport(&status) => Err(status_error(function, &status)),
            Err(_) => Ok(Said { protocol: 0, constants: false }),
        };
        self.said.get_or_try_init(ask).await.copied()
    }

    /// Whether the server does not speak this protocol.
    pub(super) async fn is_foreign(&self, function: &str) -> Result<bool> {
        Ok(self.may_be_foreign && self.said(function).await?.protocol == 0)
    }

    /// Whether an arrow-udf server is newer than version 1 of its protocol, which has no such action.
    async fn says_arrow_udf_version(&self, function: &str) -> Result<bool> {
        match self.action("protocol_version").await {
            Ok(_) => Ok(true),
            Err(status) if is_of_transport(&status) => Err(status_error(function, &status)),
            Err(_) => Ok(false),
        }
    }
}
