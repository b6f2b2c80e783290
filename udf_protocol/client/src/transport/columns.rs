//! Batches as requests of HTTP/1.1, over TCP or a Unix socket, with columns as they lie in memory (`docs/protocol.md` §7): in
//! the request, or in segments that client and server share.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use udf_codec::wire::ServerInfo;
use udf_project::endpoint::Endpoint;
use udf_types::Result;
use udf_types::signature::{FunctionKind, Signature};

use crate::folder::Folder;
use crate::inbox::Inbox;
use crate::names::random_name;
use crate::outbox::Outbox;
use crate::route::Encoding;
use crate::transport::credentials::Credentials;
use crate::transport::http_server::{HttpServer, ServersGroups, path_of, refuse_map};
use crate::transport::pipeline::{Dialogue, Pipelines};
use crate::transport::{Takes, Transport};

/// Columns in bytes, over HTTP.
#[derive(Debug)]
pub(crate) struct Columns {
    server: Arc<HttpServer>,
    pipelines: Pipelines,
}

impl Columns {
    /// A client of the server at `endpoint`, which is not connected to yet, and takes so much; none if that is not known.
    ///
    /// `segments` are the folder of the segments and the bytes of columns that go with the request nevertheless.
    pub(crate) fn new(
        endpoint: Endpoint,
        credentials: &Credentials,
        encoding: Encoding,
        segments: Option<(Folder, usize)>,
        takes: Option<Takes>,
    ) -> Columns {
        let server = Arc::new(HttpServer::new(endpoint, credentials, takes));
        Columns { server, pipelines: Pipelines::new(segments, encoding) }
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        refuse_map(signature, "HTTP")?;
        let exchange = random_name();
        let takes = self.server.takes().await?;
        let dialogue = Dialogue { signature, path: &path_of(&signature.function), name: &exchange, takes };
        let _groups = (signature.kind == FunctionKind::Aggregate).then(|| ServersGroups::new(&self.server, &exchange));
        self.pipelines.exchange(&self.server.http, dialogue, outbox, inbox).await
    }
}

impl Transport for Columns {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(self.server.say_hello())
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(self.server.get_signature(function))
    }

    fn close_idle(&self) {
        self.server.http.close_idle();
        self.pipelines.close_idle();
    }

    fn exchange<'a>(
        &'a self,
        signature: &'a Signature,
        outbox: &'a mut Outbox,
        inbox: &'a Inbox,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.run_exchange(signature, outbox, inbox))
    }
}
