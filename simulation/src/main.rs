//! Client, manager and server core in one process, on one thread, on simulated time, network, disk and container engine. One seed
//! decides everything (`docs/architecture.md`).

mod containers;
mod kernel;
mod model;
mod scheduler;
mod session;
mod symbols;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use peak_alloc::PeakAlloc;
use udf_client::planted::{Planted, plant};

/// Counts the memory of all that is simulated.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Runs seeds of the simulation.
#[derive(Debug, Parser)]
struct Flags {
    /// Run this seed alone, here, and show what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Plant a fault of that name, which must be found.
    #[arg(long)]
    plant: Option<String>,
    /// Show the last lines of a seed only if it fails.
    #[arg(long, requires = "seed")]
    quiet: bool,
    /// How many seeds to run.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run no more seeds once one has failed.
    #[arg(long)]
    until_failed: bool,
    /// How many run at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(name) = &flags.plant {
        let Some(fault) = Planted::ALL.into_iter().find(|fault| format!("{fault:?}") == *name) else {
            eprintln!("the faults are {:?}", Planted::ALL);
            return ExitCode::FAILURE;
        };
        plant(fault);
    }
    match flags.seed {
        Some(seed) => run_here(seed, flags.quiet),
        None => run_all(&flags),
    }
}

/// Runs one seed in this process, which has nothing of another seed's.
fn run_here(seed: u64, is_quiet: bool) -> ExitCode {
    let folder = tempfile::Builder::new().prefix("sim").tempdir_in("/dev/shm").expect("there is memory for a folder");
    // Names of files decide the order of maps, so no name is another run's.
    std::env::set_current_dir(folder.path()).expect("the folder is there");
    let path = PathBuf::from("/proc/self/cwd");
    let run = move || {
        if !is_quiet {
            trace::show();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| world::run(seed, &path)));
        let outcome = outcome.unwrap_or_else(|cause| {
            let words = cause.downcast_ref::<String>().cloned();
            Err(words.or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
        });
        (outcome, trace::take())
    };
    // A thread of its own, whose randomness is the seed's from its first map on.
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(run).expect("there is memory for a thread");
    let (outcome, (lines, count, digest)) = thread.join().expect("panics are caught");
    match outcome {
        Ok(()) => {
            println!("seed {seed}: {count} lines, digest {digest:016x}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            lines.iter().for_each(|line| println!("{line}"));
            println!("seed {seed} FAILED: {wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Runs many seeds, each in a process of its own.
fn run_all(flags: &Flags) -> ExitCode {
    let program = std::env::current_exe().expect("the program has a path");
    let (next, failed) = (AtomicU64::new(flags.first), Mutex::new(Vec::<u64>::new()));
    let (end, start) = (flags.first + flags.seeds, Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..flags.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = flags.until_failed && !failed.lock().expect("no holder panics").is_empty();
                    if seed >= end || is_over {
                        return;
                    }
                    let mut command = Command::new(&program);
                    if let Some(name) = &flags.plant {
                        command.args(["--plant", name]);
                    }
                    command
                        .args(["--quiet", "--seed", &seed.to_string()])
                        .env("RUST_BACKTRACE", "0")
                        .stdin(Stdio::null());
                    let output = command.output().expect("the program can be started again");
                    if !output.status.success() {
                        let text = String::from_utf8_lossy(&output.stdout);
                        let last = text.lines().last().unwrap_or_default().to_string();
                        println!("{last} ({}); repeat it with: make simulate SEED={seed}", output.status);
                        failed.lock().expect("no holder panics").push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no holder panics");
    println!("{} seeds in {:.0} s, {} failed {failed:?}", flags.seeds, start.elapsed().as_secs_f64(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
