//! The HTTP door for metrics and status page: GET alone, one answer per connection, and no client can hold it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE as METRICS_TYPE;
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use udf_types::{Error, Result};

use super::hosts::Hosts;
use super::page::STYLE;

use crate::log;

/// So many connections are open at a time. A further one ends the oldest: whoever only holds one loses it.
const MOST_CONNECTIONS: usize = 16;
/// A connection lasts no longer, from its first byte to the last of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const MOST_HEADERS: usize = 64;
/// hyper permits no less.
const HEADER_BYTES: usize = 8 << 10;

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/`
    Status,
    /// `/metrics`
    Metrics,
}

/// What is answered.
pub type Answer = Arc<dyn Fn(Page) -> String + Send + Sync>;

/// Listens on an address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|cause| Error::invalid_definition(format!("could not listen on \"{address}\": {cause}")))
}

/// Answers connections, for ever.
pub(super) async fn serve(listener: TcpListener, hosts: Hosts, answer: Answer) {
    let hosts = Arc::new(hosts);
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                log::warning("accept_failed").write(format_args!("could not accept a connection for metrics: {cause}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(serve_connection(stream, hosts.clone(), answer.clone())).abort_handle());
    }
}

async fn serve_connection(stream: TcpStream, hosts: Arc<Hosts>, answer: Answer) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let response = respond(&request, &hosts, &answer);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever breaks off gets nothing.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

fn respond<B>(request: &Request<B>, hosts: &Hosts, answer: &Answer) -> Response<Full<Bytes>> {
    let refuse = |status: StatusCode, text: &'static str| describe(status, "text/plain; charset=utf-8", text.into());
    if !is_for(request, hosts) {
        let text =
            "This host name is not one of the manager's. Use its address, or start transshipd with --metrics-host.\n";
        return refuse(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if request.method() != Method::GET {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "GET is allowed alone.\n");
        response.headers_mut().insert(ALLOW, "GET".parse().expect("it is plain"));
        return response;
    }
    match request.uri().path() {
        "/" => describe(StatusCode::OK, "text/html; charset=utf-8", answer(Page::Status)),
        "/metrics" => describe(StatusCode::OK, METRICS_TYPE, answer(Page::Metrics)),
        _ => refuse(StatusCode::NOT_FOUND, "There are / and /metrics.\n"),
    }
}

/// Whether a request asks for this host, in its header and, where the request's line has a host as well, there.
fn is_for<B>(request: &Request<B>, hosts: &Hosts) -> bool {
    let mut named = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (named.next(), named.next()) else { return false };
    let authority = request.uri().authority().map(|authority| authority.as_str());
    host.to_str().is_ok_and(|host| hosts.permit(host)) && authority.is_none_or(|host| hosts.permit(host))
}

fn describe(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    let mut set = |name: &'static str, value: &str| {
        headers.insert(name, value.parse().expect("it is plain"));
    };
    set(CONTENT_TYPE.as_str(), content_type);
    set("content-security-policy", &POLICY);
    set("x-content-type-options", "nosniff");
    set("x-frame-options", "DENY");
    set("referrer-policy", "no-referrer");
    set("cross-origin-resource-policy", "same-origin");
    set("cross-origin-opener-policy", "same-origin");
    set("cache-control", "no-store");
    response
}

/// Nothing but the page's own style, no script, no frame around it.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let style = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::time::Instant;

    /// A door on a port of its own, on a thread that ends with the test's process.
    fn open_door() -> SocketAddr {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
                let address = listener.local_addr().unwrap();
                sender.send(address).unwrap();
                let answer: Answer = Arc::new(|page| format!("{page:?}"));
                serve(listener, Hosts::new(address.ip(), Vec::new()), answer).await;
            });
        });
        receiver.recv().unwrap()
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut client = Client::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn only_what_is_there_is_answered() {
        let door = open_door();
        let status = |request: &str| ask(door, request).get(9..12).unwrap_or_default().to_string();
        let get = |path: &str| ask(door, &format!("GET {path} HTTP/1.1\r\nHost: {door}\r\n\r\n"));
        let page = get("/");
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("\r\n\r\nStatus"), "{page}");
        for header in [
            "content-security-policy: default-src 'none'; style-src 'sha256-",
            "x-content-type-options: nosniff",
            "x-frame-options: DENY",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
            "connection: close",
        ] {
            assert!(page.contains(header), "{header} is not in {page}");
        }
        assert!(get("/metrics").ends_with("\r\n\r\nMetrics"));
        assert!(get("/metrics").contains("content-type: text/plain; version=0.0.4"));
        for path in ["/x", "/metrics/", "//", "/../etc/passwd", "/%2e%2e/"] {
            assert!(get(path).starts_with("HTTP/1.1 404 "), "{path}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT"] {
            let refused = status(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"));
            assert!(["405", "400"].contains(&refused.as_str()), "{method}: {refused}");
        }
        let host = |lines: &str| status(&format!("GET / HTTP/1.1\r\n{lines}\r\n"));
        assert_eq!(host("Host: localhost\r\n"), "200");
        for lines in ["", "Host: evil.example\r\n", "Host: localhost\r\nHost: evil.example\r\n", "Host: \u{e9}\r\n"] {
            assert_eq!(host(lines), "421", "{lines}");
        }
        assert_eq!(status("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), "421");
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), "421");
    }

    #[test]
    fn too_much_is_refused() {
        let door = open_door();
        let long = ask(door, &format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000)));
        assert!(long.is_empty() || long.starts_with("HTTP/1.1 4"), "{long}");
        let many = ask(door, &format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(100)));
        assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
        // Only one request per connection.
        let two = ask(door, &"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2));
        assert_eq!(two.matches("HTTP/1.1 ").count(), 1, "{two}");
    }

    #[test]
    fn slow_clients_cannot_hold_it() {
        let door = open_door();
        let mut slow: Vec<Client> = (0..3 * MOST_CONNECTIONS).map(|_| Client::connect(door).unwrap()).collect();
        for client in &mut slow {
            let _ = client.write_all(b"GET / HT");
        }
        let begun = Instant::now();
        assert!(ask(door, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200 "));
        // The last ones are ended by time, before this client gives up.
        let mut last = slow.pop().unwrap();
        last.set_read_timeout(Some(3 * CONNECTION_TIMEOUT)).unwrap();
        let mut rest = Vec::new();
        last.read_to_end(&mut rest).unwrap();
        assert!(begun.elapsed() >= HEADER_TIMEOUT / 2, "{:?}", begun.elapsed());
    }
}
