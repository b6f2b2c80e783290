//! Listens and stops, `docs/protocol.md` §8.

use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::util::MapRequestLayer;
use udf_types::limits::MAX_MESSAGE_BYTES;

use crate::columns::has_segments;
use crate::container::Container;
use crate::exchanges::Exchanges;
use crate::flight::Flight;
use crate::function::Function;
use crate::http::{Http, Listener};
use crate::tables::Listening;

const WINDOW_BYTES: u32 = 16 << 20;
/// A few streams that are not read keep no other of their connection from being read. No more than that: h2 bounds the number of small
/// frames by this window.
const CONNECTION_WINDOW_BYTES: u32 = 8 * WINDOW_BYTES;
/// Patience with calls that run when the server is asked to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const STOP_STEP: Duration = Duration::from_millis(5);

/// Where a server listens, and what it calls itself.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Name and version, for the greeting.
    pub server: String,
    /// Whether handlers write lines for their callers (`docs/protocol.md` §4.11).
    pub has_lines: bool,
    /// Whether handlers can read shared tables (`docs/protocol.md` §4.13).
    pub has_tables: bool,
    /// The folder of `http.sock`, `flight.sock` and, with shared tables, `tables.sock`.
    pub socket_folder: Option<String>,
    /// The TCP port of HTTP.
    pub http_port: Option<u16>,
    /// The TCP port of Flight.
    pub flight_port: Option<u16>,
}

impl Settings {
    /// What the environment of a container says (`docs/protocol.md` §8).
    ///
    /// # Errors
    /// If a port is none.
    pub fn from_environment(server: &str) -> Result<Settings, String> {
        Ok(Settings {
            server: server.to_string(),
            has_lines: false,
            has_tables: false,
            socket_folder: std::env::var("TRANSSHIP_SOCKET_DIR").ok(),
            http_port: port("TRANSSHIP_HTTP_PORT")?,
            flight_port: port("TRANSSHIP_FLIGHT_PORT")?,
        })
    }
}

/// Answers calls of the functions until SIGTERM or SIGINT arrives, and then until running calls are done.
///
/// # Errors
/// If it cannot listen.
pub fn serve(functions: Vec<Function>, settings: &Settings) -> Result<(), String> {
    let (_stop, stopped) = watch::channel(false);
    serve_until(functions, settings, stopped, |_| ())
}

/// The same, which ends when `stopped` becomes true as well, and says when it listens.
pub(crate) fn serve_until(
    functions: Vec<Function>,
    settings: &Settings,
    stopped: watch::Receiver<bool>,
    on_ready: impl FnOnce(&Arc<Http>),
) -> Result<(), String> {
    let names: Vec<&str> = functions.iter().map(Function::name).collect();
    let mut transports = vec!["flight", "json", "socket"];
    if has_segments() {
        transports.push("shm");
    }
    let greeting = json!({
        "protocol": 1, "server": settings.server, "functions": names, "transports": transports, "keep_alive": true,
        "constants": true, "row_errors": true,
        "lines": settings.has_lines, "tables": settings.has_tables && settings.socket_folder.is_some(),
    });
    let container = Arc::new(Container { greeting: greeting.to_string(), functions, exchanges: Exchanges::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|cause| cause.to_string())?.block_on(listen(container, settings, stopped, on_ready))
}

async fn listen(
    container: Arc<Container>,
    settings: &Settings,
    asked: watch::Receiver<bool>,
    on_ready: impl FnOnce(&Arc<Http>),
) -> Result<(), String> {
    let failed = |cause: std::io::Error| cause.to_string();
    let (stop, stopped) = watch::channel(false);
    let http = Http::start(container.clone()).map_err(failed)?;
    let mut tasks = Vec::new();
    let mut is_reachable = false;
    let mut offers = None;
    if let Some(folder) = &settings.socket_folder {
        if settings.has_tables {
            // It is there before a client reads in the greeting that it is.
            let tables = bind_unix(&format!("{folder}/tables.sock")).map_err(failed)?;
            offers = Some(Listening::start(tables).map_err(failed)?);
        }
        http.listen(Listener::Unix(bind_unix(&format!("{folder}/http.sock")).map_err(failed)?)).map_err(failed)?;
        let flight = bind_unix(&format!("{folder}/flight.sock")).map_err(failed)?;
        flight.set_nonblocking(true).map_err(failed)?;
        let flight = UnixListener::from_std(flight).map_err(failed)?;
        is_reachable = true;
        tasks.push(tokio::spawn(serve_flight(container.clone(), UnixListenerStream::new(flight), stopped.clone())));
    }
    if let Some(port) = settings.http_port {
        let listener = std::net::TcpListener::bind(("0.0.0.0", port)).map_err(failed)?;
        http.listen(Listener::Tcp(listener)).map_err(failed)?;
        is_reachable = true;
    }
    if let Some(port) = settings.flight_port {
        let listener = TcpListener::bind(("0.0.0.0", port)).await.map_err(failed)?;
        // The end of a stream is a small packet behind others, which would wait until the client has confirmed those.
        let accepted = TcpListenerStream::new(listener)
            .map(|accepted| accepted.and_then(|socket| socket.set_nodelay(true).map(|()| socket)));
        tasks.push(tokio::spawn(serve_flight(container.clone(), accepted, stopped.clone())));
        is_reachable = true;
    }
    if !is_reachable {
        return Err("set TRANSSHIP_SOCKET_DIR, TRANSSHIP_HTTP_PORT or TRANSSHIP_FLIGHT_PORT".to_string());
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    eprintln!("transship: ready, {} functions", container.functions.len());
    on_ready(&http);
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {}, () = wait(asked) => {} }
    stop.send_replace(true);
    http.stop();
    let all = async {
        while http.is_open() {
            tokio::time::sleep(STOP_STEP).await;
        }
        for task in tasks {
            let _ = task.await;
        }
    };
    let _ = tokio::time::timeout(STOP_PATIENCE, all).await;
    // After the calls that they are for.
    drop(offers);
    Ok(())
}

fn port(name: &str) -> Result<Option<u16>, String> {
    std::env::var(name).ok().map(|text| text.parse().map_err(|_| format!("{name} is no port"))).transpose()
}

fn bind_unix(path: &str) -> std::io::Result<net::UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::remove_file(path);
    let listener = net::UnixListener::bind(path)?;
    // The engine that connects is another user than this one; the directory around the socket decides who gets here.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
    Ok(listener)
}

async fn wait(mut stopped: watch::Receiver<bool>) {
    // The sender lives until the program ends.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// tonic takes a stream that its client has cancelled for one that has ended, and a map function would take the rows that it has got for all.
fn tell_cancelled(request: Request<Body>) -> Request<Body> {
    let tell = |cause: Status| match cause.code() {
        Code::Cancelled => Status::aborted("the client has gone"),
        _ => cause,
    };
    request.map(|body| Body::new(body.map_err(tell)))
}

async fn serve_flight<S, L>(container: Arc<Container>, listener: L, stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + tonic::transport::server::Connected + Unpin + Send + 'static,
    L: futures_util::Stream<Item = std::io::Result<S>> + Send + 'static,
{
    let service = FlightServiceServer::new(Flight(container))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(usize::MAX);
    let served = tonic::transport::Server::builder()
        .layer(MapRequestLayer::new(tell_cancelled))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming_shutdown(listener, wait(stopped))
        .await;
    if let Err(cause) = served {
        eprintln!("transship: {cause}");
    }
}
