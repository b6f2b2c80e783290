//! HTTP/1.1 over TCP, TLS or a Unix socket, for JSON and for columns.
//!
//! It answers one request per connection at a time, so each batch in flight has a connection; connections are kept and
//! used again.

use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::segment::Segments;
use super::tls::Tls;
use super::{Credentials, Endpoint, MAX_MESSAGE_BYTES, connect_unix, innermost};
use crate::error::{Error, Result};

/// The content type of JSON.
pub(crate) const JSON: &str = "application/json";

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Http {
    endpoint: Endpoint,
    secrets: HeaderMap,
    /// For an endpoint that is reached over TLS.
    tls: Option<Tls>,
    idle: Mutex<Vec<Connection>>,
}

/// A connection, on which one request at a time is answered.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The segments through which its batches go, once there are any.
    pub(crate) segments: Option<Segments>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

impl Http {
    /// A client of the server at `endpoint`, which is not connected to yet.
    pub(crate) fn new(endpoint: Endpoint, credentials: &Credentials) -> Http {
        let tls = match &endpoint {
            Endpoint::JsonTls(authority) => Some(Tls::new(authority, credentials, "http/1.1")),
            _ => None,
        };
        Http { endpoint, secrets: credentials.headers(), tls, idle: Mutex::new(Vec::new()) }
    }

    /// Where the server listens.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        match &self.endpoint {
            Endpoint::JsonUnix(path) => self.shake_hands(connect_unix(path).await).await,
            Endpoint::JsonTcp(authority) => {
                let stream = TcpStream::connect(authority).await.and_then(|stream| {
                    stream.set_nodelay(true)?;
                    Ok(stream)
                });
                self.shake_hands(stream).await
            }
            _ => match &self.tls {
                Some(tls) => self.shake_hands(tls.connect().await).await,
                None => Err(Error::unreachable(&self.endpoint.to_string(), "it speaks Flight, not JSON")),
            },
        }
    }

    async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: std::io::Result<S>,
    ) -> Result<SendRequest<Full<Bytes>>> {
        let unreachable = |cause: &dyn std::fmt::Display| Error::unreachable(&self.endpoint.to_string(), cause);
        let stream = stream.map_err(|cause| unreachable(&cause))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|cause| unreachable(&cause))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Gets what is at a path.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        self.request(Method::GET, path, HeaderMap::new(), String::new()).await
    }

    /// Posts a JSON body.
    pub(crate) async fn post(&self, path: &str, body: String) -> Result<Answer> {
        self.request(Method::POST, path, HeaderMap::new(), body).await
    }

    /// Sends a request with further headers. A retryable error means that the connection was lost.
    pub(crate) async fn request(&self, method: Method, path: &str, headers: HeaderMap, body: String) -> Result<Answer> {
        let mut connection = self.take().await?;
        let answer = self.request_on(&mut connection, method, path, headers, JSON, Bytes::from(body)).await?;
        self.keep(connection);
        Ok(answer)
    }

    /// A connection that nobody is using.
    pub(crate) async fn take(&self) -> Result<Connection> {
        loop {
            let kept = self.idle.lock().expect("no holder panics").pop();
            match kept {
                Some(connection) if connection.sender.is_closed() => continue,
                Some(connection) => return Ok(connection),
                None => return Ok(Connection { sender: self.connect().await?, segments: None }),
            }
        }
    }

    /// Keeps a connection, whose requests are answered, for the next who needs one.
    pub(crate) fn keep(&self, connection: Connection) {
        if !connection.sender.is_closed() {
            self.idle.lock().expect("no holder panics").push(connection);
        }
    }

    /// Sends a request on a connection. A retryable error means that it was lost.
    pub(crate) async fn request_on(
        &self,
        connection: &mut Connection,
        method: Method,
        path: &str,
        headers: HeaderMap,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Answer> {
        let host = match &self.endpoint {
            Endpoint::JsonTcp(authority) | Endpoint::JsonTls(authority) => authority.as_str(),
            _ => "localhost",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body))
            .map_err(|cause| Error::invalid_definition(format!("a request could not be written: {cause}")))?;
        request.headers_mut().extend(headers);
        request.headers_mut().extend(self.secrets.clone());
        let lost = |cause: hyper::Error| Error::unreachable(&self.endpoint.to_string(), innermost(&cause));
        connection.sender.ready().await.map_err(lost)?;
        let response = connection.sender.send_request(request).await.map_err(lost)?;
        let status = response.status();
        let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
        let body = Limited::new(response.into_body(), MAX_MESSAGE_BYTES)
            .collect()
            .await
            .map_err(|cause| Error::unreachable(&self.endpoint.to_string(), cause))?
            .to_bytes();
        Ok(Answer { status, content_type, body })
    }
}
