//! HTTP/1.1 over TCP, TLS or a Unix socket, for the transports that speak JSON, and the streams below it.
//!
//! It answers one request per connection at a time, so each batch in flight has a connection; connections are kept and
//! used again.

use std::collections::TryReserveError;
use std::io::Read;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Body as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use md5::{Digest as _, Md5};
use tokio::io::{AsyncRead, AsyncWrite};
use udf_codec::lines::LINES;
use udf_project::endpoint::Endpoint;
use udf_types::{Error, Kind, Result};

use crate::budget::{Budget, Share};
use crate::transport::credentials::Credentials;
use crate::transport::tcp::Tcp;
use crate::transport::tls::Tls;
use crate::transport::unix::UnixSocket;
use crate::transport::{MAX_ASIDE_BYTES, innermost};

/// What is unpacked at a time.
const PIECE_BYTES: usize = 64 << 10;

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
    /// For an endpoint that is a Unix socket.
    unix: Option<UnixSocket>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// How long it wants not to be asked again.
    pub(crate) retry_after: Option<Duration>,
    /// The field with lines that the handler wrote.
    pub(crate) lines: Option<HeaderValue>,
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
        let unix = match &endpoint {
            Endpoint::JsonUnix(path) => Some(UnixSocket::new(path, credentials)),
            _ => None,
        };
        let secrets = credentials.headers();
        Http { endpoint, secrets, tls, tcp, accepts_gzip, unix, idle: Mutex::new(Vec::new()) }
    }

    /// Where the server listens.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connects to the server.
    pub(crate) async fn open(&self) -> Result<Stream> {
        let unreachable = |cause: std::io::Error| Error::unreachable(&self.endpoint.to_string(), cause);
        Ok(match (&self.unix, &self.tcp, &self.tls) {
            (Some(unix), ..) => Box::new(unix.connect().await.map_err(unreachable)?),
            (_, Some(tcp), _) => Box::new(tcp.connect().await.map_err(unreachable)?),
            (_, _, Some(tls)) => Box::new(tls.connect().await.map_err(unreachable)?),
            _ => return Err(Error::unreachable(&self.endpoint.to_string(), "it speaks Flight, not JSON")),
        })
    }

    /// Closes the connections that no request is using.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().expect("no holder panics").clear();
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

    /// Gets what is at a path, if it is small.
    pub(crate) async fn get(&self, path: &str) -> Result<HttpResponse> {
        self.request(Method::GET, path, HeaderMap::new(), String::new()).await
    }

    /// Posts a JSON body; the answer is a reply that counts as `share` of an exchange's budget.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: String,
        most: Most<'_>,
    ) -> Result<HttpResponse> {
        self.request_within(Method::POST, path, headers, body, most).await
    }

    /// Sends a request with further headers, for an answer that is small.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<HttpResponse> {
        let budget = Budget::new(MAX_ASIDE_BYTES);
        let most = Most { function: "", share: &mut budget.share(0), bytes: MAX_ASIDE_BYTES };
        self.request_within(method, path, headers, body, most).await
    }

    /// Sends a request with further headers. A retryable error means that the connection was lost.
    pub(crate) async fn request_within(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
        mut most: Most<'_>,
    ) -> Result<HttpResponse> {
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
        let (connection, response) = loop {
            let kept = self.idle.lock().expect("no holder panics").pop();
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.ready().await {
                Err(_) if is_kept => continue,
                outcome => outcome.map_err(lost)?,
            }
            match connection.try_send_request(request).await {
                Ok(response) => break (connection, response),
                Err(mut failure) => match failure.take_message().filter(|_| is_kept) {
                    // The server has closed the connection meanwhile, and nothing of the request was written.
                    Some(unsent) => request = unsent,
                    None => return Err(lost(failure.into_error())),
                },
            }
        };
        let status = response.status();
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| pause_of(value.to_str().ok()?));
        let is_gzip = response.headers().get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip");
        let digest = response.headers().get("content-md5").cloned();
        let lines = response.headers().get(LINES).cloned();
        let mut body = Vec::new();
        let mut incoming = response.into_body();
        let length = incoming.size_hint().exact();
        while let Some(frame) = incoming.frame().await {
            if let Ok(piece) = frame.map_err(lost)?.into_data() {
                most.take(piece.len()).await?;
                extend(&mut body, &piece, length).map_err(|_| most.exceeded())?;
            }
        }
        if !connection.is_closed() {
            self.idle.lock().expect("no holder panics").push(connection);
        }
        if digest.is_some_and(|digest| !is_digest_of(digest.as_bytes(), &body)) {
            return Err(most.damaged());
        }
        let body = if is_gzip && self.accepts_gzip { unpack(&body, &mut most).await? } else { body };
        Ok(HttpResponse { status, body: body.into(), retry_after, lines })
    }
}

/// How large an answer may be.
pub(crate) struct Most<'a> {
    /// The function whose reply it is, for messages.
    pub(crate) function: &'a str,
    pub(crate) share: &'a mut Share,
    /// What the rows that are asked for can need, if that is known, and with it less than the share.
    pub(crate) bytes: usize,
}

impl Most<'_> {
    /// Counts a further piece, and waits for its turn.
    async fn take(&mut self, more: usize) -> Result<()> {
        let Some(left) = self.bytes.checked_sub(more) else {
            return Err(match self.function {
                "" => self.exceeded(),
                function => Error::protocol(function, "Its reply is larger than its rows can be."),
            });
        };
        self.bytes = left;
        self.share.grow(self.function, more).await
    }

    fn damaged(&self) -> Error {
        let fact = "Its body does not match its Content-MD5.";
        match self.function {
            "" => Error::new(Kind::ProtocolViolation, "an answer of a server is damaged").with_detail(fact),
            function => Error::protocol(function, fact),
        }
    }

    fn exceeded(&self) -> Error {
        if self.function.is_empty() {
            let fact = format!("It is larger than {} MB.", MAX_ASIDE_BYTES >> 20);
            return Error::new(Kind::ProtocolViolation, "an answer of a server cannot be read").with_detail(fact);
        }
        self.share.exceeded(self.function)
    }
}

/// Whether `Content-MD5` says that of a body as it was sent (RFC 1864); some write it in hexadecimal.
fn is_digest_of(said: &[u8], body: &[u8]) -> bool {
    let digest = Md5::digest(body);
    let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    said == BASE64.encode(digest).as_bytes() || said.eq_ignore_ascii_case(hexadecimal.as_bytes())
}

/// What `Retry-After` says, in seconds or as a date (RFC 9110 §10.2.3).
pub(super) fn pause_of(text: &str) -> Option<Duration> {
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = chrono::DateTime::parse_from_rfc2822(text.trim()).ok()?;
            Some(date.signed_duration_since(chrono::Utc::now()).to_std().unwrap_or_default())
        }
    }
}

/// Appends, unless there is no memory for it. A body whose length is known has no room for more, once it is there.
fn extend(body: &mut Vec<u8>, piece: &[u8], length: Option<u64>) -> std::result::Result<(), TryReserveError> {
    let needed = body.len() + piece.len();
    if needed > body.capacity() {
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        let room = body.len().saturating_mul(2).min(length).max(needed);
        body.try_reserve_exact(room - body.len())?;
    }
    body.extend_from_slice(piece);
    Ok(())
}

/// A body without its compression.
async fn unpack(body: &[u8], most: &mut Most<'_>) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let mut decoder = MultiGzDecoder::new(body);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let size = decoder.read(&mut piece).map_err(|cause| {
            Error::new(Kind::ProtocolViolation, "a compressed answer of a server cannot be read")
                .with_detail(format!("It cannot be unpacked: {cause}."))
        })?;
        if size == 0 {
            return Ok(unpacked);
        }
        most.take(size).await?;
        extend(&mut unpacked, &piece[..size], None).map_err(|_| most.exceeded())?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_kept_connection_that_was_closed_meanwhile_loses_no_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let closed = listener.accept().unwrap();
            drop(closed);
            let (mut stream, _) = listener.accept().unwrap();
            let (mut reader, mut line) = (BufReader::new(stream.try_clone().unwrap()), String::new());
            while reader.read_line(&mut line).is_ok_and(|size| size > 2) {
                line.clear();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        });
        let http = Http::new(Endpoint::JsonTcp(authority.clone()), &Credentials::default());
        let stream = tokio::net::TcpStream::connect(authority).await.unwrap();
        stream.readable().await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        // The runtime has one thread: nobody has seen yet that it was closed.
        tokio::spawn(connection);
        http.idle.lock().unwrap().push(sender);
        assert_eq!(http.get("/").await.unwrap().body, "ok");
    }

    #[tokio::test]
    async fn what_grows_too_large_is_not_unpacked() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[b' '; 100_000]).unwrap();
        let packed = encoder.finish().unwrap();
        let budget = Budget::new(100_000);
        let unpack = async |bytes| {
            unpack(&packed, &mut Most { function: "f", share: &mut budget.share(0), bytes }).await.map(|it| it.len())
        };
        assert_eq!(unpack(100_000).await.unwrap(), 100_000);
        assert_eq!(unpack(1_000_000).await.unwrap(), 100_000);
        assert_eq!(unpack(99_999).await.unwrap_err().kind(), Kind::ProtocolViolation);
        let budget = Budget::new(99_999);
        let mut share = budget.share(0);
        let most = &mut Most { function: "f", share: &mut share, bytes: 1_000_000 };
        assert_eq!(super::unpack(&packed, most).await.unwrap_err().kind(), Kind::OutOfMemory);
    }
}
