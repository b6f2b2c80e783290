//! Listens and stops, `docs/protocol.md` §7.

use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use udf_project::manifest::Manifest;

use crate::aggregate::Exchanges;
use crate::columns::has_segments;
use crate::error::{CallError, install_panic_hook};
use crate::flight::Flight;
use crate::function::{Function, Functions};
use crate::http::{Http, Listener};

const MAX_MESSAGE_BYTES: usize = 1 << 30;
const WINDOW_BYTES: u32 = 16 << 20;
/// Patience with calls that run when the server is asked to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const STOP_STEP: Duration = Duration::from_millis(5);

/// What all transports answer for.
pub(crate) struct Container {
    pub(crate) functions: Vec<Function>,
    pub(crate) greeting: String,
    pub(crate) exchanges: Exchanges,
}

impl Container {
    pub(crate) fn find(&self, name: &str) -> Result<&Function, CallError> {
        let found = self.functions.iter().find(|function| function.name() == name);
        found.ok_or_else(|| CallError::unknown_function(name))
    }
}

pub(crate) fn run(functions: Functions) -> Result<(), String> {
    let root = std::env::var("TRANSSHIP_ROOT").unwrap_or_else(|_| "/opt/transship".to_string());
    let text =
        std::fs::read_to_string(format!("{root}/manifest.json")).map_err(|cause| format!("manifest.json: {cause}"))?;
    let mut manifest = Manifest::from_label(&text).map_err(|error| error.to_string())?;
    let functions = functions.bind(&manifest)?;
    if std::env::args().nth(1).as_deref() == Some("describe") {
        for (entry, function) in manifest.functions.iter_mut().zip(&functions) {
            entry.merges = function.groups().is_ok();
        }
        print!("{}", manifest.to_label());
        return Ok(());
    }
    let names: Vec<&str> = functions.iter().map(Function::name).collect();
    let mut transports = vec!["flight", "json", "socket"];
    if has_segments() {
        transports.push("shm");
    }
    let server = concat!("transship-rust/", env!("CARGO_PKG_VERSION"));
    let greeting = json!({"protocol": 1, "server": server, "functions": names, "transports": transports, "keep_alive": true});
    install_panic_hook();
    let container = Arc::new(Container { functions, greeting: greeting.to_string(), exchanges: Exchanges::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|cause| cause.to_string())?.block_on(serve(container))
}

async fn serve(container: Arc<Container>) -> Result<(), String> {
    let failed = |cause: std::io::Error| cause.to_string();
    let (stop, stopped) = watch::channel(false);
    let http = Http::start(container.clone()).map_err(failed)?;
    let mut tasks = Vec::new();
    let mut is_reachable = false;
    if let Ok(folder) = std::env::var("TRANSSHIP_SOCKET_DIR") {
        http.listen(Listener::Unix(bind_unix(&format!("{folder}/http.sock")).map_err(failed)?)).map_err(failed)?;
        let flight = bind_unix(&format!("{folder}/flight.sock")).map_err(failed)?;
        flight.set_nonblocking(true).map_err(failed)?;
        let flight = UnixListener::from_std(flight).map_err(failed)?;
        is_reachable = true;
        tasks.push(tokio::spawn(serve_flight(container.clone(), UnixListenerStream::new(flight), stopped.clone())));
    }
    if let Some(port) = port("TRANSSHIP_HTTP_PORT")? {
        let listener = std::net::TcpListener::bind(("0.0.0.0", port)).map_err(failed)?;
        http.listen(Listener::Tcp(listener)).map_err(failed)?;
        is_reachable = true;
    }
    if let Some(port) = port("TRANSSHIP_FLIGHT_PORT")? {
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
    eprintln!("transship: ready, {} functions", container.functions.len());
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
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

async fn serve_flight<S, L>(container: Arc<Container>, listener: L, stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + tonic::transport::server::Connected + Unpin + Send + 'static,
    L: futures_util::Stream<Item = std::io::Result<S>> + Send + 'static,
{
    let service = FlightServiceServer::new(Flight(container))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(usize::MAX);
    let served = tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming_shutdown(listener, wait(stopped))
        .await;
    if let Err(cause) = served {
        eprintln!("transship: {cause}");
    }
}
