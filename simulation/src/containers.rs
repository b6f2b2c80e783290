//! The simulated container engine: its containers are processes of the simulation, in which the server core answers.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use container_manager::runtime::container_runtime::{ContainerRuntime, FoundReplica, ReplicaSpec, ReplicaStatus};
use container_manager::runtime::image_store::{BuildOptions, ImageStore, TransferOptions};
use container_manager::template::Template;
use fastrand::Rng;
use tokio::net::UnixListener;
use transship_core::simulation::Server;
use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use crate::model::Model;
use crate::scheduler::{Scheduler, sleep, soon};
use crate::trace;

/// What goes wrong with containers, in percent of all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// What is asked of the container engine fails.
    pub refused_percent: u8,
    /// A container ends before it listens.
    pub stillborn_percent: u8,
    /// It never listens.
    pub deaf_percent: u8,
    /// Requests that take up to `most_slow`.
    pub slow_percent: u8,
    /// Longest part of a slow answer.
    pub most_slow: Duration,
}

/// An image of the simulation.
#[derive(Debug, Clone)]
pub struct Image {
    /// Digest and manifest.
    pub info: ImageInfo,
    /// What its functions' answers differ by from other images'.
    pub salt: i64,
    /// Whether its server says that connections may be kept.
    pub keep_alive: bool,
    /// Whether its server knows errors of rows.
    pub row_errors: bool,
}

struct Container {
    digest: String,
    socket_dir: PathBuf,
    process: Option<usize>,
    is_paused: bool,
    fate: Option<String>,
}

/// The container engine.
#[derive(Clone)]
pub struct Containers(Arc<Mutex<State>>);

struct State {
    rng: Rng,
    model: Model,
    images: Vec<Image>,
    containers: BTreeMap<String, Container>,
    trouble: Trouble,
}

impl Containers {
    /// An engine with these images and no containers.
    pub fn new(seed: u64, model: Model, images: Vec<Image>) -> Containers {
        let (containers, trouble) = Default::default();
        Containers(Arc::new(Mutex::new(State { rng: Rng::with_seed(seed), model, images, containers, trouble })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }

    /// Changes what goes wrong.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.lock().trouble = trouble;
    }

    /// The names of the containers that have not ended.
    pub fn running(&self) -> Vec<String> {
        let state = self.lock();
        let running = state.containers.iter().filter(|(_, container)| container.fate.is_none());
        running.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a container is there and has not ended.
    pub fn is_running(&self, name: &str) -> bool {
        self.lock().containers.get(name).is_some_and(|container| container.fate.is_none())
    }

    /// One of the containers that run, with its process.
    pub fn choose(&self, rng: &mut Rng) -> Option<(String, usize)> {
        let state = self.lock();
        let running: Vec<(String, usize)> = state
            .containers
            .iter()
            .filter(|(_, container)| container.fate.is_none())
            .filter_map(|(name, container)| Some((name.clone(), container.process?)))
            .collect();
        (!running.is_empty()).then(|| running[rng.usize(..running.len())].clone())
    }

    /// Ends a container.
    pub fn end(&self, scheduler: &mut Scheduler, name: &str, fate: &str) {
        let process = {
            let mut state = self.lock();
            let Some(container) = state.containers.get_mut(name) else { return };
            container.fate.get_or_insert(fate.to_string());
            container.process.take()
        };
        trace::note(format_args!("container {name} {fate}"));
        if let Some(process) = process {
            scheduler.kill(process);
        }
    }

    /// Starts the process of a container.
    fn boot(&self, scheduler: &mut Scheduler, name: String) {
        let (socket_dir, image, (is_stillborn, is_deaf), boot, model) = {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(container) = state.containers.get(&name).filter(|container| container.fate.is_none()) else {
                return;
            };
            let image = state.images.iter().find(|image| image.info.digest == container.digest);
            let image = image.expect("it was asked for at the start").clone();
            let chances = (state.rng.u8(..100), state.rng.u8(..100));
            let trouble = (chances.0 < state.trouble.stillborn_percent, chances.1 < state.trouble.deaf_percent);
            let boot = Duration::from_millis(state.rng.u64(1..800));
            (container.socket_dir.clone(), image, trouble, boot, state.model.clone())
        };
        if is_stillborn {
            let engine = self.clone();
            scheduler.after(boot, move |scheduler| engine.end(scheduler, &name, "exited with status 1"));
            return;
        }
        let server = Server::new(model.functions(image.salt), image.keep_alive, image.row_errors);
        let engine = self.clone();
        let main = async move {
            sleep(boot).await;
            let Ok(listener) = UnixListener::bind(socket_dir.join("http.sock")) else { return };
            if is_deaf {
                std::future::pending::<()>().await;
            }
            while let Ok((stream, _)) = listener.accept().await {
                let (Ok(stream), server, engine) = (stream.into_std(), server.clone(), engine.clone()) else {
                    continue;
                };
                tokio::spawn(async move { serve(&server, stream, &engine).await });
            }
        };
        let process = scheduler.start(&name, main);
        if let Some(container) = self.lock().containers.get_mut(&name) {
            container.process = Some(process);
        }
    }

    /// How long a part of an answer takes.
    fn pause(&self) -> Duration {
        let mut state = self.lock();
        let State { rng, trouble, .. } = &mut *state;
        if rng.u8(..100) < trouble.slow_percent {
            Duration::from_micros(rng.u64(..=trouble.most_slow.as_micros() as u64))
        } else {
            Duration::from_micros(rng.u64(..2_000))
        }
    }

    fn refuse(&self, what: &str) -> Result<()> {
        let mut state = self.lock();
        if state.rng.u8(..100) < state.trouble.refused_percent {
            trace::note(format_args!("the container engine does not {what}"));
            return Err(Error::new(Kind::ContainerFailed, format!("could not {what}: the container engine is unwell")));
        }
        Ok(())
    }

    fn find(&self, image: &str) -> Result<ImageInfo> {
        let state = self.lock();
        let is_it = |known: &&Image| known.info.digest == image || known.info.manifest.image() == image;
        let found = state.images.iter().find(is_it).map(|known| known.info.clone());
        found.ok_or_else(|| Error::new(Kind::ImageNotFound, format!("image \"{image}\" does not exist")))
    }
}

async fn serve(server: &Server, stream: UnixStream, engine: &Containers) {
    let engine = engine.clone();
    // An error means that the client has gone.
    let _ = server
        .answer(stream, move || {
            let pause = engine.pause();
            async move { sleep(pause).await }
        })
        .await;
}

impl ContainerRuntime for Containers {
    fn name(&self) -> &str {
        "docker"
    }

    fn check(&self) -> Result<String> {
        Ok("simulated".to_string())
    }

    fn start(&self, spec: &ReplicaSpec) -> Result<()> {
        self.refuse("start a container")?;
        self.find(&spec.digest)?;
        let container = Container {
            digest: spec.digest.clone(),
            socket_dir: spec.socket_dir.clone(),
            process: None,
            is_paused: false,
            fate: None,
        };
        self.lock().containers.insert(spec.name.clone(), container);
        trace::note(format_args!("container {} starts", spec.name));
        let (engine, name) = (self.clone(), spec.name.clone());
        soon(move |scheduler| engine.boot(scheduler, name));
        Ok(())
    }

    fn status(&self, name: &str) -> Result<ReplicaStatus> {
        self.refuse("look at a container")?;
        let state = self.lock();
        Ok(match state.containers.get(name) {
            Some(Container { fate: None, .. }) => ReplicaStatus::Running,
            Some(Container { fate: Some(fate), .. }) => ReplicaStatus::Ended(fate.clone()),
            None => ReplicaStatus::Ended("is gone".to_string()),
        })
    }

    fn pause(&self, name: &str) -> Result<()> {
        self.refuse("pause a container")?;
        self.set_paused(name, true)
    }

    fn resume(&self, name: &str) -> Result<()> {
        self.refuse("resume a container")?;
        self.set_paused(name, false)
    }

    fn stop(&self, name: &str) -> Result<()> {
        self.refuse("stop a container")?;
        let removed = self.lock().containers.remove(name);
        trace::note(format_args!("container {name} is stopped"));
        if let Some(process) = removed.and_then(|container| container.process) {
            soon(move |scheduler| scheduler.kill(process));
        }
        Ok(())
    }

    fn logs(&self, _: &str) -> Result<String> {
        Ok("a line".to_string())
    }

    fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
        self.refuse("list containers")?;
        let state = self.lock();
        // As docker does, with those that have ended.
        let found = state.containers.iter().map(|(name, container)| FoundReplica {
            name: name.clone(),
            digest: container.digest.clone(),
            socket_dir: container.socket_dir.clone(),
            is_paused: container.is_paused,
        });
        Ok(found.collect())
    }
}

impl Containers {
    fn set_paused(&self, name: &str, is_paused: bool) -> Result<()> {
        let mut state = self.lock();
        let Some(container) = state.containers.get_mut(name).filter(|container| container.fate.is_none()) else {
            return Err(Error::new(Kind::ContainerFailed, format!("there is no container \"{name}\" to be paused")));
        };
        container.is_paused = is_paused;
        if let Some(process) = container.process {
            soon(move |scheduler| scheduler.pause(process, is_paused));
        }
        trace::note(format_args!("container {name} {}", if is_paused { "is paused" } else { "goes on" }));
        Ok(())
    }

    /// Whether the engine has paused a container, which a fault must not end.
    pub fn is_paused(&self, name: &str) -> bool {
        self.lock().containers.get(name).is_some_and(|container| container.is_paused)
    }

    /// How long the engine takes for what it is asked.
    pub fn delay(&self) -> Duration {
        let mut state = self.lock();
        let (is_slow, most) = (state.rng.u8(..100) < state.trouble.slow_percent, state.trouble.most_slow);
        let most_us = if is_slow { most.as_micros() as u64 } else { 5_000 };
        Duration::from_micros(state.rng.u64(..=most_us))
    }
}

impl ImageStore for Containers {
    fn resolve(&self, image: &str) -> Result<ImageInfo> {
        self.refuse("look at an image")?;
        self.find(image)
    }

    fn images(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.lock().images.iter().map(|image| image.info.clone()).collect())
    }

    fn was_built_here(&self, _: &str) -> bool {
        true
    }

    fn build(&self, _: &Path, _: &Manifest, _: &Template, _: &BuildOptions) -> Result<ImageInfo> {
        Err(Error::new(Kind::BuildFailed, "the simulation builds no images"))
    }

    fn remove_image(&self, _: &ImageInfo) -> Result<()> {
        Ok(())
    }

    fn push(&self, _: &str, _: &str, _: &TransferOptions) -> Result<String> {
        Err(Error::new(Kind::Unreachable, "the simulation has no registry"))
    }

    fn pull(&self, _: &str, _: bool, _: &TransferOptions) -> Result<ImageInfo> {
        Err(Error::new(Kind::Unreachable, "the simulation has no registry"))
    }
}
