//! A TCP connection to a server, straight or through a proxy.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::threads;
use crate::transport::CONNECT_TIMEOUT;
use crate::transport::credentials::Credentials;
use crate::transport::proxy::Proxy;

/// Silence after which the kernel asks whether the other side is still there, and how often: what lies between forgets
/// connections that are silent for longer.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Longest answer of a proxy, in bytes.
const MAX_ANSWER_BYTES: usize = 8 << 10;

/// How to reach one server.
#[derive(Debug, Clone)]
pub(crate) struct Tcp {
    /// Host and port.
    authority: String,
    proxy: Option<Proxy>,
}

impl Tcp {
    /// The way to the server at `authority`.
    pub(crate) fn new(authority: &str, credentials: &Credentials) -> Tcp {
        Tcp { authority: authority.to_string(), proxy: credentials.proxy.clone() }
    }

    /// Host and port of the server.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Connects. The addresses of a name take turns, and those that do not answer leave theirs to the next.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let connecting = async {
            let Some(proxy) = &self.proxy else { return open(&self.authority).await };
            let mut stream =
                open(&proxy.authority).await.map_err(|cause| explain("could not reach the proxy", cause))?;
            self.make_tunnel(&mut stream, proxy).await.map_err(|cause| explain("the proxy refused", cause))?;
            Ok(stream)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn make_tunnel(&self, stream: &mut TcpStream, proxy: &Proxy) -> io::Result<()> {
        let login = proxy.login.as_ref().map(|login| base64::engine::general_purpose::STANDARD.encode(login));
        let login = login.map(|login| format!("Proxy-Authorization: Basic {login}\r\n")).unwrap_or_default();
        let authority = &self.authority;
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Byte by byte, since what follows is the server's.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() == MAX_ANSWER_BYTES {
                return Err(io::Error::other("its answer is too long"));
            }
            answer.push(stream.read_u8().await?);
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut headers);
        parsed.parse(&answer).map_err(io::Error::other)?;
        match parsed.code {
            Some(200..=299) => Ok(()),
            code => Err(io::Error::other(format!("it answered with HTTP status {}", code.unwrap_or_default()))),
        }
    }
}

/// The addresses of a host and port. A name is looked up in a thread of its own: tokio's own function panics if the process can
/// have no more threads.
pub(crate) async fn look_up(authority: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = authority.parse() {
        return Ok(vec![address]);
    }
    let (sender, found) = oneshot::channel();
    let name = authority.to_string();
    let looking = threads::start("transship-name", move || {
        // Nobody may wait any more.
        let _ = sender.send(name.to_socket_addrs().map(Iterator::collect));
    });
    looking.map_err(|cause| explain("could not start a thread to look up the name", cause))?;
    found.await.unwrap_or_else(|_| Err(io::Error::other("the lookup of the name ended")))
}

async fn open(authority: &str) -> io::Result<TcpStream> {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let mut addresses = look_up(authority).await?;
    if !addresses.is_empty() {
        // Processes begin anywhere, so that they do not all begin with the same server.
        let turn = TURN.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id() as usize);
        let first = turn % addresses.len();
        addresses.rotate_left(first);
    }
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses {
        outcome = TcpStream::connect(address).await;
        if let Ok(stream) = &outcome {
            stream.set_nodelay(true)?;
            SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE)?;
            break;
        }
    }
    outcome
}

fn explain(what: &str, cause: io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{what}: {cause}"))
}
