//! The manager's Unix socket: one task per connection, requests in turn, leases that end with the connection.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use udf_protocol::control::{Request, Response, read_line};
use udf_protocol::{Error, Kind, Result};

use crate::config::{Config, make_dir};
use crate::pool::Pool;
use crate::registration::library::Upload;

/// Binds the manager's socket, in place of one that a dead manager left.
pub fn bind(socket: &Path) -> Result<UnixListener> {
    let failed = |cause: std::io::Error| {
        Error::new(Kind::InvalidDefinition, format!("could not listen on \"{}\": {cause}", socket.display()))
    };
    if let Some(folder) = socket.parent() {
        make_dir(folder)?;
    }
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!("a manager is listening on \"{}\" already", socket.display()),
        ));
    }
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(failed)?;
    // Everybody may knock; the peer's user decides who is let in.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}

/// Serves connections until the listener fails.
pub async fn serve(listener: UnixListener, pool: Arc<Pool>, config: Arc<Config>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (pool, config) = (pool.clone(), config.clone());
                tokio::spawn(async move { serve_connection(stream, pool, &config).await });
            }
            Err(cause) => {
                eprintln!("transshipd: could not accept a connection: {cause}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// What one connection holds: its leases, which dropping it releases, and the files it has sent.
struct Held {
    pool: Arc<Pool>,
    replicas: Vec<String>,
    upload: Upload,
}

impl Drop for Held {
    fn drop(&mut self) {
        for replica in &self.replicas {
            self.pool.release(replica);
        }
    }
}

async fn serve_connection(stream: UnixStream, pool: Arc<Pool>, config: &Config) {
    let uid = stream.peer_cred().map(|credentials| credentials.uid());
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut held = Held { pool, replicas: Vec::new(), upload: Upload::default() };
    loop {
        let line = match read_line(&mut reader).await {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(cause) => return eprintln!("transshipd: a request was cut off: {cause}"),
        };
        let mut is_readable = true;
        let response = match &uid {
            Ok(uid) if config.allowed_uids.contains(uid) => match serde_json::from_str(&line) {
                Ok(request) => answer(request, &mut held).await,
                Err(cause) => {
                    is_readable = false;
                    Err(Error::new(Kind::ProtocolViolation, format!("the request cannot be read: {cause}")))
                }
            },
            _ => Err(Error::new(Kind::NotAllowed, "permission denied for the container manager")
                .with_hint("Start transshipd with --allow-user for the user that the database server runs as.")),
        };
        let response = response.unwrap_or_else(Response::Error);
        let mut line = serde_json::to_string(&response).expect("responses hold nothing that JSON cannot");
        line.push('\n');
        // docs/protocol.md §9: "the manager ends a connection at the first line that is no request". Whoever speaks something
        // else, HTTP for example, may carry lines that somebody else has written.
        if writer.write_all(line.as_bytes()).await.is_err() || !is_readable {
            return;
        }
    }
}

async fn answer(request: Request, held: &mut Held) -> Result<Response> {
    let pool = held.pool.clone();
    match request {
        Request::Ping => Ok(Response::Pong {
            version: env!("CARGO_PKG_VERSION").to_string(),
            runtime: pool.runtime_name().to_string(),
        }),
        Request::Resolve { image } => pool.resolve(image).await.map(Response::Image),
        Request::BuildInline { manifest, source } => pool.build_inline(*manifest, source).await.map(Response::Image),
        Request::AddToFile { path, content } => held.upload.add(&path, &content).map(|()| Response::Added),
        Request::BuildLibrary { library } => {
            let upload = std::mem::take(&mut held.upload);
            pool.build_library(library, upload).await.map(Response::Image)
        }
        Request::Acquire { digest } => {
            let info = pool.acquire(&digest).await?;
            held.replicas.push(info.replica.clone());
            Ok(Response::Lease(info))
        }
        Request::ReportFailure { replica } => pool.judge(replica).await.map(|fate| Response::Fate { fate }),
        Request::Replicas => Ok(Response::Replicas { replicas: pool.list() }),
        Request::Logs { replica } => pool.logs(replica).await.map(|text| Response::Logs { text }),
    }
}
