//! The manager's own process, under the names that Prometheus' client libraries have for it (proc(5)).

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Fields of `/proc/self/stat`, counted from the state behind the name, which may have spaces.
const UTIME: usize = 11;
const STIME: usize = 12;
const THREADS: usize = 17;
const START: usize = 19;
const RESIDENT_PAGES: usize = 21;

/// Appends the gauges of the process in Prometheus' text format. What the kernel does not say is left out.
pub fn write_process_metrics(text: &mut String) {
    let mut registry = Registry::default();
    let mut add = |name: &str, help: &str, value: Option<u64>| {
        if let Some(value) = value {
            let gauge: Gauge = Gauge::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        }
    };
    let stat = stat_fields().unwrap_or_default();
    let field = |number: usize| stat.get(number)?.parse::<u64>().ok();
    let resident = field(RESIDENT_PAGES).zip(system(SysconfVar::PAGE_SIZE)).map(|(pages, size)| pages * size);
    add("process_resident_memory_bytes", "Resident memory of the manager", resident);
    add("process_threads", "Threads of the manager", field(THREADS));
    let descriptors = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64);
    add("process_open_fds", "Open descriptors of the manager", descriptors);
    let most = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    add("process_max_fds", "Limit of the manager's open descriptors", most);
    let started = field(START).zip(system(SysconfVar::CLK_TCK)).zip(boot_time());
    let started = started.map(|((ticks, per_second), boot)| boot + ticks / per_second);
    add("process_start_time_seconds", "When the manager was started, in seconds since 1970", started);
    encode(text, &registry).expect("a string can be written to");
}

/// Processor time of the process so far.
pub(super) fn cpu_seconds() -> Option<f64> {
    let stat = stat_fields()?;
    let ticks = stat.get(UTIME)?.parse::<u64>().ok()? + stat.get(STIME)?.parse::<u64>().ok()?;
    Some(ticks as f64 / system(SysconfVar::CLK_TCK)? as f64)
}

fn stat_fields() -> Option<Vec<String>> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_string).collect())
}

fn boot_time() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn system(variable: SysconfVar) -> Option<u64> {
    u64::try_from(sysconf(variable).ok()??).ok().filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_described() {
        let mut text = String::new();
        write_process_metrics(&mut text);
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse::<u64>().unwrap()
        };
        assert!((1 << 20..1 << 34).contains(&value("process_resident_memory_bytes")));
        assert!(value("process_threads") >= 1 && value("process_open_fds") >= 3);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((now - 86_400..=now + 1).contains(&value("process_start_time_seconds")));
        assert!(cpu_seconds().unwrap() < 1e6);
    }
}
