//! HTTP/1.1 over TCP, TLS or a Unix socket, for the transports that speak JSON, and the streams below it.
//!
//! It answers one request per connection at a time, so each batch in flight has a connection; connections are kept and
//! used again.

use std::io::Read;
use std::sync::Mutex;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::tcp::Tcp;
use super::tls::Tls;
use super::{Credentials, Endpoint, MAX_MESSAGE_BYTES, innermost, unix};
use crate::error::{Error, Kind, Result};

/// A connection, of whatever kind.
pub(crate) type Stream = Box<dyn ReadWrite>;

/// What a connection can do.
pub(crate) trait ReadWrite: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ReadWrite for S {}

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Http {
    endpoint: Endpoint,
    secrets: HeaderMap,
    /// For an endpoint that is reached over TLS.
    tls: Option<Tls>,
    /// For one that is reached over TCP without it.
    tcp: Option<Tcp>,
    accepts_gzip: bool,
    /// As in [`Credentials`].
    server_user: Option<u32>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Http {
    /// A client of the server at `endpoint`, which is not connected to yet.
    pub(crate) fn new(endpoint: Endpoint, credentials: &Credentials) -> Http {
        let tls = match &endpoint {
            Endpoint::JsonTls(authority) => Some(Tls::new(authority, credentials, "http/1.1")),
            _ => None,
        };
        let tcp = match &endpoint {
            Endpoint::JsonTcp(authority) => Some(Tcp::new(authority, credentials)),
            _ => None,
        };
        let accepts_gzip = credentials.compression;
        let (secrets, server_user) = (credentials.headers(), credentials.server_user);
        Http { endpoint, secrets, tls, tcp, accepts_gzip, server_user, idle: Mutex::new(Vec::new()) }
    }

    /// Where the server listens.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connects to the server.
    pub(crate) async fn open(&self) -> Result<Stream> {
        let unreachable = |cause: std::io::Error| Error::unreachable(&self.endpoint.to_string(), cause);
        Ok(match (&self.endpoint, &self.tcp, &self.tls) {
            (Endpoint::JsonUnix(path), ..) => {
                Box::new(unix::connect(path, self.server_user).await.map_err(unreachable)?)
            }
            (_, Some(tcp), _) => Box::new(tcp.connect().await.map_err(unreachable)?),
            (_, _, Some(tls)) => Box::new(tls.connect().await.map_err(unreachable)?),
            _ => return Err(Error::unreachable(&self.endpoint.to_string(), "it speaks Flight, not JSON")),
        })
    }

    /// The value of the header `Host`.
    pub(crate) fn host(&self) -> &str {
        match &self.endpoint {
            Endpoint::JsonTcp(authority) | Endpoint::JsonTls(authority) => authority,
            _ => "localhost",
        }
    }

    /// Headers that each request has.
    pub(crate) fn secrets(&self) -> &HeaderMap {
        &self.secrets
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TokioIo::new(self.open().await?);
        let (sender, connection) =
            handshake(stream).await.map_err(|cause| Error::unreachable(&self.endpoint.to_string(), cause))?;
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
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.host())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .map_err(|cause| Error::invalid_definition(format!("a request could not be written: {cause}")))?;
        // These replace what is there already.
        request.headers_mut().extend(headers);
        request.headers_mut().extend(self.secrets.clone());
        if self.accepts_gzip {
            request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let lost = |cause: hyper::Error| Error::unreachable(&self.endpoint.to_string(), innermost(&cause));
        let kept = loop {
            let kept = self.idle.lock().expect("no holder panics").pop();
            match kept {
                Some(connection) if connection.is_closed() => continue,
                other => break other,
            }
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await.map_err(lost)?;
        let response = connection.send_request(request).await.map_err(lost)?;
        let status = response.status();
        let is_gzip = response.headers().get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip");
        let body = Limited::new(response.into_body(), MAX_MESSAGE_BYTES)
            .collect()
            .await
            .map_err(|cause| Error::unreachable(&self.endpoint.to_string(), cause))?
            .to_bytes();
        if !connection.is_closed() {
            self.idle.lock().expect("no holder panics").push(connection);
        }
        let body = if is_gzip && self.accepts_gzip { unpack(&body, MAX_MESSAGE_BYTES)? } else { body };
        Ok(Answer { status, body })
    }
}

/// A body without its compression, which may then be of at most `most` bytes.
fn unpack(body: &[u8], most: usize) -> Result<Bytes> {
    let mut unpacked = Vec::new();
    let read = MultiGzDecoder::new(body).take(most as u64 + 1).read_to_end(&mut unpacked);
    let fact = match read {
        Ok(size) if size > most => format!("It is larger than {most} bytes."),
        Ok(_) => return Ok(unpacked.into()),
        Err(cause) => format!("It cannot be unpacked: {cause}."),
    };
    Err(Error::new(Kind::ProtocolViolation, "a compressed answer of a server cannot be read").with_detail(fact))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_grows_too_large_is_not_unpacked() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[b' '; 100_000]).unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(unpack(&packed, 100_000).unwrap().len(), 100_000);
        let error = unpack(&packed, 99_999).unwrap_err();
        assert_eq!(error.detail(), Some("It is larger than 99999 bytes."));
    }
}
