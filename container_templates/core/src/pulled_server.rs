//! A server whose functions another language pulls: what the C interface is made of.

use std::os::fd::RawFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use udf_project::manifest::{BatchForm, Manifest};
use udf_types::signature::{FunctionKind, Signature};

use crate::function::Function;
use crate::http::Http;
use crate::pulled::Pulled;
use crate::queue::{Found, Queue};
use crate::serve::{Settings, serve_until};

/// How a language wants columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Columns {
    /// As Arrow has them.
    #[default]
    Arrow,
    /// Bool, int64, float64 and bytes.
    Plain,
}

/// What a language says of its server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    server: String,
    root: Option<String>,
    #[serde(default)]
    columns: Columns,
    /// Whether it gives the lines that handlers write.
    #[serde(default)]
    lines: bool,
    /// Whether handlers can read shared tables.
    #[serde(default)]
    tables: bool,
    /// Whether one thread alone pulls and runs handlers.
    #[serde(default)]
    one_thread: bool,
}

/// A function as a language needs it to find the handler.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: FunctionKind,
    pub(crate) form: BatchForm,
    pub(crate) signature: Arc<Signature>,
    /// Calls of a batch that may be under way at a time.
    pub(crate) concurrency: usize,
}

/// A server that a language pulls from.
#[derive(Debug)]
pub(crate) struct PulledServer {
    pub(crate) entries: Vec<Entry>,
    manifest: Manifest,
    settings: Settings,
    columns: Columns,
    queue: Arc<Queue>,
    /// Its connections, once it listens, and the process: one that a handler forks has a copy.
    http: Arc<OnceLock<(Arc<Http>, u32)>>,
    stop: watch::Sender<bool>,
    is_started: Mutex<bool>,
}

impl PulledServer {
    /// A server of the manifest that the configuration, in JSON, leads to. It does not listen yet.
    pub(crate) fn new(config: &str) -> Result<PulledServer, String> {
        let config: Config = serde_json::from_str(config).map_err(|cause| format!("the configuration: {cause}"))?;
        let root = config.root.or_else(|| std::env::var("TRANSSHIP_ROOT").ok());
        let path = format!("{}/manifest.json", root.as_deref().unwrap_or("/opt/transship"));
        let text = std::fs::read_to_string(&path).map_err(|cause| format!("{path}: {cause}"))?;
        let manifest = Manifest::from_label(&text).map_err(|error| error.to_string())?;
        let mut entries = Vec::new();
        for entry in &manifest.functions {
            let refuse = |fact: String| format!("function \"{}\": {fact}", entry.name);
            let signature = entry.signature().map_err(|error| refuse(error.to_string()))?;
            let missing = || refuse("transship.toml must give its arguments and result".to_string());
            let signature = Arc::new(signature.ok_or_else(missing)?);
            entries.push(Entry {
                name: entry.name.clone(),
                kind: entry.kind,
                form: entry.batch,
                signature,
                concurrency: entry.concurrency as usize,
            });
        }
        let environment = Settings::from_environment(&config.server)?;
        let settings = Settings { has_lines: config.lines, has_tables: config.tables, ..environment };
        let queue = Arc::new(Queue::new(config.one_thread).map_err(|cause| cause.to_string())?);
        let (stop, _) = watch::channel(false);
        Ok(PulledServer {
            entries,
            manifest,
            settings,
            columns: config.columns,
            queue,
            http: Arc::default(),
            stop,
            is_started: Mutex::new(false),
        })
    }

    /// Whether columns are plain ones.
    pub(crate) fn is_plain(&self) -> bool {
        self.columns == Columns::Plain
    }

    /// The manifest as JSON, in which the aggregate functions at these numbers merge states.
    pub(crate) fn describe(&self, merging: &[usize]) -> String {
        let mut manifest = self.manifest.clone();
        for (number, entry) in manifest.functions.iter_mut().enumerate() {
            entry.merges |= merging.contains(&number);
        }
        manifest.to_label()
    }

    /// Begins to listen, with threads of its own, after a step that happens once.
    pub(crate) fn start(&self, prepare: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let mut is_started = self.is_started.lock().map_err(|_| "an earlier start failed".to_string())?;
        if std::mem::replace(&mut *is_started, true) {
            return Err("the server was started before".to_string());
        }
        prepare()?;
        let functions = self.entries.iter().enumerate().map(|(number, entry)| {
            let pulled = Pulled {
                queue: self.queue.clone(),
                function: number,
                signature: entry.signature.clone(),
                form: entry.form,
                is_plain: self.is_plain(),
            };
            Function::of_puller(pulled)
        });
        let (functions, settings) = (functions.collect(), self.settings.clone());
        let (queue, stopped) = (self.queue.clone(), self.stop.subscribe());
        let (told, ready) = mpsc::channel();
        let (listening, http, pulled) = (told.clone(), self.http.clone(), self.queue.clone());
        let run = move || {
            let served = serve_until(functions, &settings, stopped, move |listens| {
                let pulls = listens.let_pull(&pulled).map_err(|cause| cause.to_string());
                let _ = http.set((listens.clone(), std::process::id()));
                // The receiver has gone if the start was given up.
                let _ = listening.send(pulls);
            });
            if let Err(fact) = served {
                let _ = told.send(Err(fact));
            }
            queue.end();
        };
        std::thread::Builder::new().name("transship".to_string()).spawn(run).map_err(|cause| cause.to_string())?;
        ready.recv().unwrap_or_else(|_| Err("the server ended before it listened".to_string()))
    }

    /// Takes no more connections, and ends after the calls that run.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The descriptor that is readable while work waits, and after the end.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.queue.descriptor()
    }

    /// The next work. A thread that waits for it answers connections meanwhile.
    pub(crate) fn next(&self, patience: Option<Duration>) -> Found {
        match self.http.get() {
            Some((_, process)) if *process != std::process::id() => Found::Ended,
            Some((http, _)) if patience != Some(Duration::ZERO) => http.pull(&self.queue, patience),
            _ => self.queue.next(patience),
        }
    }
}
