//! The container manager's main: flags, configuration, adoption, service, shutdown.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use container_manager::adoption::adopt;
use container_manager::advice::advised;
use container_manager::cache::process::{self, StoreProcess, run_store};
use container_manager::catalogue::Catalogue;
use container_manager::config::Config;
use container_manager::file_decoder::{self, FileDecoder, run_decoder};
use container_manager::flags::DaemonFlags;
use container_manager::images::Images;
use container_manager::make_dir::make_closed_dir;
use container_manager::pool::Pool;
use container_manager::{api, folders, log, monitoring, runtime, traces};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::signal::unix::{SignalKind, signal};
use udf_client::channel::path_beside;
use udf_client::file_rows::SUFFIX;
use udf_types::{Error, Kind, Result};

/// Longest wait for unfinished work at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (ended, what) = match arguments.next().as_deref() {
        Some(process::COMMAND) => (run_store(arguments), "the store of cached results"),
        Some(file_decoder::COMMAND) => (run_decoder(arguments), "a decoder of files"),
        _ => return run_manager(),
    };
    let Err(cause) = ended else { return ExitCode::SUCCESS };
    log::error("helper_failed").write(format_args!("{what} failed: {cause}"));
    ExitCode::FAILURE
}

fn run_manager() -> ExitCode {
    let flags = DaemonFlags::parse();
    log::set_format(flags.log_format);
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error("failed").write(advised(error));
            ExitCode::FAILURE
        }
    }
}

fn run(flags: DaemonFlags) -> Result<()> {
    let config = flags.into_config()?;
    make_closed_dir(&config.host.paths.state_dir)?;
    make_closed_dir(&config.host.paths.run_dir)?;
    // Two managers would stop each other's replicas.
    let _state = lock_folder(&config.host.paths.state_dir)?;
    let _run = lock_folder(&config.host.paths.run_dir)?;
    let failed = |cause: std::io::Error| Error::new(Kind::InvalidDefinition, format!("could not start: {cause}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let served = runtime.block_on(serve(config));
    // Whatever still waits then waits for a container engine that hangs.
    runtime.shutdown_timeout(END_TIMEOUT);
    served
}

/// Keeps other managers from a folder until the lock is dropped, or the process ends.
fn lock_folder(folder: &Path) -> Result<Flock<File>> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidDefinition, format!("could not lock \"{}\": {cause}", folder.display()))
    };
    let path = folder.join("lock");
    // Whoever can open it can take the lock. An earlier version let everybody.
    let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(|cause| failed(&cause))?;
    file.set_permissions(Permissions::from_mode(0o600)).map_err(|cause| failed(&cause))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, cause)| match cause {
        Errno::EWOULDBLOCK => failed(&"another manager uses it"),
        cause => failed(&cause),
    })
}

async fn serve(config: Config) -> Result<()> {
    let failed = |cause: std::io::Error| Error::new(Kind::InvalidDefinition, format!("could not start: {cause}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let engine = runtime::choose(&config.host)?;
    engine.containers.check()?;
    for doubt in engine.doubts()? {
        log::warning("doubt").write(doubt);
    }
    folders::close(&config.host.paths.state_dir, engine.containers.name() == "process").map_err(failed)?;
    if engine.containers.name() == "process" {
        log::warning("development_runtime").write(
            "the process runtime is for development: replicas share this host's files and one user, and are not \
             limited in processors and processes (docs/security.md)",
        );
    }
    let metrics_listener = match config.metrics_listen {
        Some(address) => Some(monitoring::door::bind(address).await?),
        None => None,
    };
    let listener = api::bind(&config.host.paths.socket)?;
    let socket = config.host.paths.socket.clone();
    let store = start_store(&config);
    let decoder = FileDecoder::start(path_beside(&socket, SUFFIX), config.allowed_uids.clone());
    let decoder = decoder.inspect_err(|error| {
        log::warning("no_files").write(format_args!("no files are decoded: {}", advised(error.clone())));
    });
    let (config, catalogue) = (Arc::new(config), Arc::new(Catalogue::default()));
    let pool = Pool::new(config.clone(), engine.containers, catalogue.clone())?;
    let images = Images::new(config.clone(), engine.images, catalogue, pool.clone());
    let adopted = adopt(&images, &pool).await?;
    log::info("ready").write(format_args!(
        "ready on {} with runtime {}, {adopted} replicas adopted",
        socket.display(),
        pool.runtime_name()
    ));
    if let Some(address) = metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
        log::info("metrics_served").write(format_args!("metrics and status page on http://{address}/"));
        if !address.ip().is_loopback() {
            let fact = format_args!("everybody who reaches {address} can read them (docs/security.md)");
            log::warning("metrics_are_public").write(fact);
        }
    }
    let (traces, mut exporter) = traces::queue(config.otlp_endpoint.clone(), pool.clone());
    tokio::select! {
        () = api::serve(listener, images.clone(), pool.clone(), config.clone(), traces) => {}
        () = exporter.run() => {}
        () = monitoring::serve(metrics_listener, pool.clone(), images.clone(), config) => {}
        () = pool.clone().keep() => {}
        () = keep_store(store.as_ref()) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = fs::remove_file(&socket);
    drop((store, decoder));
    images.shut_down();
    images.settle().await;
    pool.shut_down().await;
    exporter.finish().await;
    log::info("stopped").write("stopped");
    Ok(())
}

/// Binds the socket of the store of cached results, if there is to be one. Without it, functions are called.
fn start_store(config: &Config) -> Option<StoreProcess> {
    if config.cache_bytes == 0 {
        return None;
    }
    let socket = udf_client::cache::socket_beside(&config.host.paths.socket);
    let users = config.allowed_uids.iter().copied();
    let store = StoreProcess::bind(socket, config.cache_bytes, config.cache_dir.clone(), users);
    let warn = |error: &Error| {
        let fact = format_args!("no results are kept: {}", advised(error.clone()));
        log::warning("store_not_bound").write(fact);
    };
    store.inspect_err(warn).ok()
}

async fn keep_store(store: Option<&StoreProcess>) {
    match store {
        Some(store) => store.keep().await,
        None => std::future::pending().await,
    }
}
