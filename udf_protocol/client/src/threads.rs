//! Threads beside the client's own: one that writes what takes long, and others for a single task.
//!
//! tokio's own would panic where the process can have no more threads.

use std::hint::black_box;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// What a thread needs to begin: its stack, of 2 MiB, and what the loader gives it for thread-local data, for lack of which it would
/// end the process.
const ROOM: usize = 4 << 20;
/// How long the writer waits for the next task.
const WRITER_LIFE: Duration = Duration::from_secs(1);

type Task = Box<dyn FnOnce() + Send>;

/// The writer's tasks.
static WRITER: Mutex<Option<Sender<Task>>> = Mutex::new(None);

/// Starts a thread, if there is memory for it.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut room: Vec<u8> = Vec::new();
    room.try_reserve_exact(ROOM).map_err(|_| io::ErrorKind::OutOfMemory)?;
    drop(black_box(room));
    thread::Builder::new().name(name.to_string()).spawn(work).map(drop)
}

/// Has the writer do something after all that it was given before. The task is dropped if there can be no writer, or if it ends
/// at this moment.
pub(crate) fn write(task: impl FnOnce() + Send + 'static) {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let mut task: Task = Box::new(task);
    if let Some(tasks) = writer.as_ref() {
        match tasks.send(task) {
            Ok(()) => return,
            Err(unsent) => task = unsent.0,
        }
    }
    let (sender, tasks) = channel();
    let _ = sender.send(task);
    let work = move || {
        while let Ok(task) = tasks.recv_timeout(WRITER_LIFE) {
            task();
        }
    };
    *writer = start("transship-json", work).is_ok().then_some(sender);
}
