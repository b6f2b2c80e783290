//! Runs programs to their end: bounded in time and output, since images and packages say what they do.

use std::collections::HashSet;
use std::io::{IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use udf_types::{Error, Kind, Result};

use crate::cancel::Cancel;
use crate::progress::Progress;

/// Longest that a program may take which gets an image or gives it to a registry.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Longest that any other may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Most that a program may write to its standard output.
const MOST_OUTPUT: usize = 16 << 20;
/// So much of the end of its standard error is kept.
const KEPT_ERRORS: usize = 64 << 10;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long its output may stay open once it has ended, if a program of its own holds it.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// What runs now and is a build, or a transfer from or to a registry.
static LONG_WORK: Mutex<Option<HashSet<i32>>> = Mutex::new(None);

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs a program to its end and gives its standard output; a failure carries the end of what it said.
pub(crate) fn run(command: &mut Command, kind: Kind, what: &str) -> Result<String> {
    run_within(command, kind, what, TIMEOUT, &Cancel::default())
}

/// The same in a time of its own, or until nobody waits for it any more.
pub(crate) fn run_within(
    command: &mut Command,
    kind: Kind,
    what: &str,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<String> {
    run_telling(command, kind, what, timeout, cancel, &Progress::default())
}

/// The same for one whose output somebody hears meanwhile; of that, only the end is kept.
pub(crate) fn run_telling(
    command: &mut Command,
    kind: Kind,
    what: &str,
    timeout: Duration,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<String> {
    cancel.check(what)?;
    let failed = |fact: String| Error::new(kind, format!("could not {what}: {fact}"));
    let name = command.get_program().display().to_string();
    let could_not = |cause: std::io::Error| failed(format!("{name}: {cause}"));
    let has_group = !std::io::stdin().is_terminal();
    if has_group {
        // So that what it starts ends with it. At a terminal, the interrupt key reaches only the terminal's own group.
        command.process_group(0);
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(could_not)?;
    let _work = matches!(kind, Kind::BuildFailed | Kind::Unreachable).then(|| LongWork::note(&child));
    let (is_heard, mut lines) = (progress.is_heard(), progress.lines());
    let output = read_in_background(child.stdout.take().expect("it is piped"), move |kept, piece| {
        if is_heard {
            lines.add(piece);
            return keep_end(kept, piece, KEPT_ERRORS);
        }
        let has_room = kept.len() + piece.len() <= MOST_OUTPUT;
        if has_room {
            kept.extend_from_slice(piece);
        }
        has_room
    });
    let mut lines = progress.lines();
    let errors = read_in_background(child.stderr.take().expect("it is piped"), move |kept, piece| {
        lines.add(piece);
        keep_end(kept, piece, KEPT_ERRORS)
    });
    let deadline = Instant::now() + timeout;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(could_not)? {
            break status;
        }
        if cancel.is_cancelled() {
            end(&mut child, has_group);
            return Err(cancel.check(what).expect_err("it stays cancelled"));
        }
        if Instant::now() >= deadline {
            end(&mut child, has_group);
            return Err(failed(format!("it took longer than {} s", timeout.as_secs()))
                .with_detail(last_lines(&text_of(&errors).0, 30)));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let ((output, is_whole), (errors, _)) = (text_of(&output), text_of(&errors));
    if !is_whole {
        return Err(failed(format!("it wrote more than {} MB", MOST_OUTPUT >> 20)));
    }
    if status.success() {
        return Ok(output);
    }
    // Whoever has heard it need not read it again.
    let detail = if is_heard { format!("{name}: {status}.") } else { detail_of(status, &output, &errors) };
    Err(Error::new(kind, format!("could not {what}")).with_detail(detail))
}

/// Runs a program to its end, and gives the end of all that it wrote, wherever to.
pub(crate) fn run_for_tail(command: &mut Command, what: &str, most_bytes: usize) -> Result<String> {
    let failed = |fact: String| Error::new(Kind::ContainerFailed, format!("could not {what}: {fact}"));
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn().map_err(|cause| failed(cause.to_string()))?;
    let keep = move |kept: &mut Vec<u8>, piece: &[u8]| keep_end(kept, piece, most_bytes);
    let output = read_in_background(child.stdout.take().expect("it is piped"), keep);
    let errors = read_in_background(child.stderr.take().expect("it is piped"), keep);
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|cause| failed(cause.to_string()))? {
            break status;
        }
        if Instant::now() >= deadline {
            end(&mut child, true);
            return Err(failed(format!("it took longer than {} s", TIMEOUT.as_secs())));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let text = text_of(&output).0 + &text_of(&errors).0;
    if status.success() {
        let start = text.ceil_char_boundary(text.len().saturating_sub(most_bytes));
        return Ok(text[start..].to_string());
    }
    Err(failed(status.to_string()).with_detail(last_lines(&text, 5)))
}

/// Keeps the end of what was read; all of it was wanted.
fn keep_end(kept: &mut Vec<u8>, piece: &[u8], most: usize) -> bool {
    kept.extend_from_slice(piece);
    kept.drain(..kept.len().saturating_sub(most));
    true
}

fn detail_of(status: ExitStatus, output: &str, errors: &str) -> String {
    let said = last_lines(&format!("{output}{errors}"), 30);
    if said.is_empty() { format!("It ended with {status}.") } else { said }
}

/// Ends the builds and transfers that run, so that a manager may end.
pub fn end_long_work() {
    for process in LONG_WORK.lock().expect("no holder panics").iter().flatten() {
        // A group of its own, except at a terminal.
        let _ = killpg(Pid::from_raw(*process), Signal::SIGKILL)
            .or_else(|_| kill(Pid::from_raw(*process), Signal::SIGKILL));
    }
}

/// A build or a transfer that runs, until this is dropped.
struct LongWork(i32);

impl LongWork {
    fn note(child: &Child) -> LongWork {
        let pid = pid_of(child);
        LONG_WORK.lock().expect("no holder panics").get_or_insert_default().insert(pid);
        LongWork(pid)
    }
}

impl Drop for LongWork {
    fn drop(&mut self) {
        LONG_WORK.lock().expect("no holder panics").get_or_insert_default().remove(&self.0);
    }
}

fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("process numbers are positive ints")
}

fn end(child: &mut Child, has_group: bool) {
    if has_group {
        let _ = killpg(Pid::from_raw(pid_of(child)), Signal::SIGKILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads all there is; `keep` says whether it wants more. Gives what was kept, and whether all of it was wanted.
fn read_in_background(
    mut source: impl Read + Send + 'static,
    mut keep: impl FnMut(&mut Vec<u8>, &[u8]) -> bool + Send + 'static,
) -> Receiver<(Vec<u8>, bool)> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let (mut kept, mut piece, mut is_whole) = (Vec::new(), [0; 16 << 10], true);
        while let Ok(count @ 1..) = source.read(&mut piece) {
            // The rest is read as well, so that the program does not wait for ever.
            is_whole = is_whole && keep(&mut kept, &piece[..count]);
        }
        // Nobody waits any more if it held its output for too long.
        let _ = sender.send((kept, is_whole));
    });
    receiver
}

fn text_of(output: &Receiver<(Vec<u8>, bool)>) -> (String, bool) {
    let (kept, is_whole) = output.recv_timeout(OUTPUT_PATIENCE).unwrap_or((Vec::new(), false));
    (String::from_utf8_lossy(&kept).into_owned(), is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::cancel;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_gives_its_output() {
        assert_eq!(run(&mut shell("echo hello; echo talk >&2"), Kind::BuildFailed, "say").unwrap(), "hello\n");
        let error = run(&mut shell("echo out; echo bad >&2; exit 3"), Kind::BuildFailed, "say").unwrap_err();
        assert_eq!((error.message(), error.detail()), ("could not say", Some("out\nbad")));
        let error = run(&mut Command::new("/none"), Kind::BuildFailed, "say").unwrap_err();
        assert!(error.message().starts_with("could not say: /none: "), "{error}");
    }

    #[test]
    fn one_that_hangs_is_ended_with_what_it_started() {
        let started = Instant::now();
        let (mut hanging, second) = (shell("sleep 60 & echo said >&2; wait"), Duration::from_secs(1));
        let error = run_within(&mut hanging, Kind::BuildFailed, "wait", second, &Cancel::default()).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!((error.message(), error.detail()), ("could not wait: it took longer than 1 s", Some("said")));
    }

    #[test]
    fn one_for_which_nobody_waits_is_ended() {
        let (canceller, cancelled) = cancel();
        let started = Instant::now();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            canceller.cancel();
        });
        let mut hanging = shell("sleep 60 & wait");
        let error = run_within(&mut hanging, Kind::BuildFailed, "wait", TIMEOUT, &cancelled).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!(error.kind(), Kind::Cancelled);
        ending.join().unwrap();
        // Nothing is started any more.
        let mut another = Command::new("/none");
        assert_eq!(
            run_within(&mut another, Kind::BuildFailed, "wait", TIMEOUT, &cancelled).unwrap_err().kind(),
            Kind::Cancelled
        );
    }

    #[test]
    fn somebody_hears_what_it_writes() {
        let (progress, mut heard) = crate::progress::progress();
        let script = "echo one; echo two >&2; head -c 20000000 /dev/zero | tr '\\0' '\\n'; printf end; exit 3";
        let failed = run_telling(&mut shell(script), Kind::BuildFailed, "say", TIMEOUT, &Cancel::default(), &progress);
        // It may write more than is kept.
        let error = failed.unwrap_err();
        assert_eq!((error.message(), error.detail()), ("could not say", Some("sh: exit status: 3.")));
        progress.end();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut said = String::new();
        while let Some(text) = runtime.block_on(heard.next()) {
            said += &text;
        }
        assert!(said.contains("one\n") && said.contains("two\n"), "{}", said.len());
    }

    #[test]
    fn one_that_writes_without_end_is_not_kept() {
        let error = run(&mut shell("head -c 40000000 /dev/zero"), Kind::BuildFailed, "write").unwrap_err();
        assert_eq!(error.message(), "could not write: it wrote more than 16 MB");
        let error = run(&mut shell("head -c 40000000 /dev/zero >&2; echo end >&2; exit 1"), Kind::BuildFailed, "write")
            .unwrap_err();
        assert!(error.detail().unwrap().len() <= KEPT_ERRORS && error.detail().unwrap().ends_with("end"));
    }
}
