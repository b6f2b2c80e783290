//! A server of this protocol that is reached over HTTP/1.1: its greeting, its functions, and the end of its groups, whatever
//! form the columns have ([`super::json`], [`super::columns`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use udf_codec::wire::{FunctionInfo, PROTOCOL_VERSION, ServerInfo};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::{Advice, Error, Kind, Result};

use crate::names::percent_encoded;
use crate::transport::Takes;
use crate::transport::credentials::Credentials;
use crate::transport::http::{Http, HttpResponse};
use crate::transport::status::kind_of_gateway;

/// How long a server may take to forget groups.
const FORGET_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that is called over HTTP.
#[derive(Debug)]
pub struct HttpServer {
    pub(super) http: Http,
    /// What the server takes; empty if it has not been asked yet.
    takes: OnceCell<Takes>,
}

impl HttpServer {
    /// A client of the server at `endpoint`, which is not connected to yet, and takes so much; none if that is not known.
    pub fn new(endpoint: Endpoint, credentials: &Credentials, takes: Option<Takes>) -> HttpServer {
        HttpServer { http: Http::new(endpoint, credentials), takes: OnceCell::new_with(takes) }
    }

    /// Posts a body as it is; status and body of the answer. For those who judge servers.
    pub async fn post(&self, path: &str, content_type: &'static str, body: Vec<u8>) -> Result<(u16, Bytes)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let answer = self.http.request(Method::POST, path, headers, body).await?;
        Ok((answer.status.as_u16(), answer.body))
    }

    /// Deletes what is at a path; the status of the answer. For those who judge servers.
    pub async fn delete(&self, path: &str) -> Result<u16> {
        let answer = self.http.request(Method::DELETE, path, HeaderMap::new(), String::new()).await?;
        Ok(answer.status.as_u16())
    }

    /// Gets what a server says of itself.
    async fn get(&self, path: &str) -> Result<HttpResponse> {
        let answer = self.http.get(path).await?;
        let (endpoint, status) = (self.http.endpoint(), answer.status);
        match kind_of_gateway(status) {
            None => Ok(answer),
            Some(Kind::NotAllowed) => Err(Error::refused(
                &format!("the server at \"{endpoint}\""),
                format!("It answered with HTTP status {status}"),
            )),
            Some(_) => Err(Error::unreachable(&endpoint.to_string(), format!("it answered with HTTP status {status}"))),
        }
    }

    /// Who answers, and what it offers (`docs/protocol.md` §2).
    pub(super) async fn say_hello(&self) -> Result<ServerInfo> {
        let answer = self.get("/v1").await?;
        let info: ServerInfo = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol("", format!("Its greeting cannot be read: {cause}.")))?;
        if info.protocol > PROTOCOL_VERSION {
            return Err(Error::protocol("", format!("It speaks version {} of the protocol.", info.protocol)));
        }
        Ok(info)
    }

    /// What the server takes. It is asked once.
    pub(super) async fn takes(&self) -> Result<Takes> {
        let ask = async || Ok(Takes::from(&self.say_hello().await?));
        self.takes.get_or_try_init(ask).await.copied()
    }

    /// The signature of one function (§3).
    pub(super) async fn get_signature(&self, function: &str) -> Result<Signature> {
        let answer = self.get(&path_of(function)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            let offered = self.say_hello().await.map(|info| info.functions).unwrap_or_default();
            return Err(Error::function_not_found(
                function,
                &format!("the server at \"{}\"", self.http.endpoint()),
                &offered,
            ));
        }
        let info: FunctionInfo = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol(function, format!("Its signature cannot be read: {cause}.")))?;
        info.into_signature(function)
    }
}

/// The groups that a server has for an exchange. Dropping this has the server forget them, however the exchange has ended: those of a
/// query that was cancelled would take memory for minutes.
pub(super) struct ServersGroups {
    server: Arc<HttpServer>,
    exchange: String,
}

impl ServersGroups {
    /// The groups of the exchange with that name.
    pub(super) fn new(server: &Arc<HttpServer>, exchange: &str) -> ServersGroups {
        ServersGroups { server: server.clone(), exchange: exchange.to_string() }
    }
}

impl Drop for ServersGroups {
    fn drop(&mut self) {
        let (server, path) = (self.server.clone(), format!("/v1/exchanges/{}", self.exchange));
        // The server forgets the groups by itself later, if this does not reach it.
        let forget = async move {
            let deleted = server.http.request(Method::DELETE, &path, HeaderMap::new(), String::new());
            let _ = tokio::time::timeout(FORGET_TIMEOUT, deleted).await;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(forget);
        }
    }
}

/// Refuses a map function, whose results come in parts of their own, where it would go over HTTP in the form that is named.
pub(super) fn refuse_map(signature: &Signature, form: &str) -> Result<()> {
    if signature.kind != FunctionKind::Map {
        return Ok(());
    }
    let message = format!("map function \"{}\" cannot be called over {form}", signature.function);
    Err(Error::invalid_definition(message).with_advice(Advice::Flight))
}

/// Where a function is.
pub(super) fn path_of(function: &str) -> String {
    format!("/v1/functions/{}", percent_encoded(function, b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gateway_that_answers_a_greeting_is_no_server_of_another_protocol() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        for (status, kind) in [("401 Unauthorized", Kind::NotAllowed), ("502 Bad Gateway", Kind::Unreachable)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = Endpoint::JsonTcp(listener.local_addr().unwrap().to_string());
            let server = HttpServer::new(endpoint.clone(), &Credentials::default(), None);
            let answer = async {
                let mut stream = listener.accept().await.unwrap().0;
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let error = tokio::join!(server.say_hello(), answer).0.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
            assert!(said.contains(&endpoint.to_string()) && said.contains(status), "{said}");
        }
    }

    #[test]
    fn function_names_are_encoded() {
        assert_eq!(path_of("a_b.c"), "/v1/functions/a_b.c");
        assert_eq!(path_of("größe/x"), "/v1/functions/gr%C3%B6%C3%9Fe%2Fx");
    }
}
