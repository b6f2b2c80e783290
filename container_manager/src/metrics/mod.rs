//! What the manager counts for Prometheus. The pool and the images count here; `monitoring` adds what is true at the moment of a
//! scrape.
//!
//! Labels have bounded sets of values: images by [`ImageLabels`], everything else by an enum. No label or value comes from a
//! handler's output.

mod labels;
mod process;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use udf_types::{Kind, Result};

use labels::ImageLabels;
pub use process::write_process_metrics;

/// Names and values of a series' labels.
pub type Labels<const N: usize> = [(&'static str, String); N];

/// A replica that runs waits for less than the first bound; one that is started takes about a second.
const LEASE_WAITS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
const START_TIMES: [f64; 9] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const BUILD_TIMES: [f64; 8] = [0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0];

/// Why a replica was taken out of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nobody had used it for `--idle-timeout-s`.
    Idle,
    /// It made room for another image.
    Room,
    /// The manager ends.
    Shutdown,
    /// It ended by itself.
    Ended,
    /// It did not answer for `--silent-timeout-s`.
    Silent,
    /// It did not start.
    StartFailed,
    /// It could not go on after a pause.
    ResumeFailed,
}

impl End {
    /// All of them.
    pub const ALL: [End; 7] =
        [End::Idle, End::Room, End::Shutdown, End::Ended, End::Silent, End::StartFailed, End::ResumeFailed];

    /// The value of the label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            End::Idle => "idle",
            End::Room => "room",
            End::Shutdown => "shutdown",
            End::Ended => "ended",
            End::Silent => "silent",
            End::StartFailed => "start_failed",
            End::ResumeFailed => "resume_failed",
        }
    }
}

/// What became of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOutcome {
    /// A collector took them.
    Exported,
    /// It did not, or too many waited for it.
    LeftOut,
}

impl SpanOutcome {
    fn name(self) -> &'static str {
        match self {
            SpanOutcome::Exported => "exported",
            SpanOutcome::LeftOut => "left_out",
        }
    }
}

/// The manager's counters and histograms.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    images: ImageLabels,
    starts: Family<Labels<1>, Counter>,
    start_seconds: Histogram,
    ends: Family<Labels<2>, Counter>,
    lease_seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    lease_errors: Family<Labels<1>, Counter>,
    waiting: Gauge,
    builds: Family<Labels<1>, Counter>,
    build_seconds: Histogram,
    spans: Family<Labels<1>, Counter>,
    process_seconds: Counter<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let lease_histogram: fn() -> Histogram = || Histogram::new(LEASE_WAITS);
        let mut metrics = Metrics {
            registry: Registry::default(),
            images: ImageLabels::default(),
            starts: Family::default(),
            start_seconds: Histogram::new(START_TIMES),
            ends: Family::default(),
            lease_seconds: Family::new_with_constructor(lease_histogram),
            lease_errors: Family::default(),
            waiting: Gauge::default(),
            builds: Family::default(),
            build_seconds: Histogram::new(BUILD_TIMES),
            spans: Family::default(),
            process_seconds: Counter::default(),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "transship_replica_starts",
            "Replicas that were started and answered",
            metrics.starts.clone(),
        );
        registry.register(
            "transship_replica_start_seconds",
            "Time from the start of a replica to its first answer",
            metrics.start_seconds.clone(),
        );
        registry.register(
            "transship_replica_ends",
            "Replicas that were stopped or ended, by reason",
            metrics.ends.clone(),
        );
        registry.register(
            "transship_lease_wait_seconds",
            "Time from the request of a lease to the lease",
            metrics.lease_seconds.clone(),
        );
        registry.register("transship_lease_errors", "Requests of a lease that failed", metrics.lease_errors.clone());
        registry.register("transship_lease_waiting", "Requests of a lease that wait", metrics.waiting.clone());
        registry.register("transship_builds", "Builds that have ended", metrics.builds.clone());
        registry.register("transship_build_seconds", "Run time of builds", metrics.build_seconds.clone());
        registry.register("transship_spans", "Spans of traced calls that engines handed over", metrics.spans.clone());
        registry.register("process_cpu_seconds", "Processor time of the manager", metrics.process_seconds.clone());
        // A counter that is missing until the first event hides that event from `rate`.
        for outcome in ["ok", "cancelled", "failed"] {
            let _ = metrics.builds.get_or_create(&[("outcome", outcome.to_string())]);
        }
        for outcome in [SpanOutcome::Exported, SpanOutcome::LeftOut] {
            metrics.spans(outcome, 0);
        }
        metrics
    }
}

impl Metrics {
    /// The label for an image: its name, or `other`.
    pub fn image_label(&self, image: &str) -> String {
        self.images.label(image)
    }

    /// Makes the counters of an image, with zeros.
    pub fn note_image(&self, image: &str) {
        let label = self.images.label(image);
        let _ = self.starts.get_or_create(&[("image", label.clone())]);
        for end in End::ALL {
            let _ = self.ends.get_or_create(&[("image", label.clone()), ("reason", end.name().to_string())]);
        }
    }

    /// A replica answered for the first time.
    pub fn started(&self, image: &str, took: Duration) {
        self.starts.get_or_create(&[("image", self.images.label(image))]).inc();
        self.start_seconds.observe(took.as_secs_f64());
    }

    /// A replica was taken out of the pool.
    pub fn ended(&self, image: &str, end: End) {
        let labels = [("image", self.images.label(image)), ("reason", end.name().to_string())];
        self.ends.get_or_create(&labels).inc();
    }

    /// Somebody waits for a lease until the result is dropped.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.inc();
        Waiting(&self.waiting)
    }

    /// A request of a lease on an image was answered.
    pub fn leased<T>(&self, image: &str, took: Duration, outcome: &Result<T>) {
        match outcome {
            Ok(_) => {
                let labels = [("image", self.images.label(image))];
                self.lease_seconds.get_or_create(&labels).observe(took.as_secs_f64());
            }
            Err(error) => {
                self.lease_errors.get_or_create(&[("kind", kind_name(error.kind()))]).inc();
            }
        }
    }

    /// A build for an engine has ended.
    pub fn built<T>(&self, took: Duration, outcome: &Result<T>) {
        let name = match outcome {
            Ok(_) => "ok",
            Err(error) if error.is_cancelled() => "cancelled",
            Err(_) => "failed",
        };
        self.builds.get_or_create(&[("outcome", name.to_string())]).inc();
        self.build_seconds.observe(took.as_secs_f64());
    }

    /// Spans were exported, or left out.
    pub fn spans(&self, outcome: SpanOutcome, count: usize) {
        self.spans.get_or_create(&[("outcome", outcome.name().to_string())]).inc_by(count as u64);
    }

    /// Requests of a lease that wait now.
    pub fn waiting(&self) -> i64 {
        self.waiting.get()
    }

    /// Appends the counters in Prometheus' text format.
    pub fn write(&self, text: &mut String) {
        let more = process::cpu_seconds().unwrap_or_default() - self.process_seconds.get();
        if more > 0.0 {
            self.process_seconds.inc_by(more);
        }
        encode(text, &self.registry).expect("a string can be written to");
    }
}

/// A request of a lease that waits until this is dropped.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Gauge);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The kind as the protocol writes it.
fn kind_name(kind: Kind) -> String {
    let name = serde_json::to_value(kind).ok();
    name.as_ref().and_then(|name| name.as_str()).unwrap_or("other").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::Error;

    fn text(metrics: &Metrics) -> String {
        let mut text = String::new();
        metrics.write(&mut text);
        text
    }

    #[test]
    fn what_happens_is_counted() {
        let metrics = Metrics::default();
        metrics.note_image("a:1");
        assert!(text(&metrics).contains("transship_replica_ends_total{image=\"a:1\",reason=\"idle\"} 0\n"));
        metrics.started("a:1", Duration::from_millis(300));
        metrics.ended("a:1", End::Idle);
        metrics.leased("a:1", Duration::from_millis(10), &Ok(()));
        let busy: Result<()> = Err(Error::new(Kind::Busy, "the secret of a handler"));
        metrics.leased("a:1", Duration::ZERO, &busy);
        metrics.built(Duration::from_secs(1), &Ok(()));
        metrics.built(Duration::from_secs(1), &Err::<(), _>(Error::cancelled()));
        metrics.built(Duration::from_secs(1), &busy);
        let waiting = metrics.wait();
        let text_now = text(&metrics);
        for line in [
            "transship_replica_starts_total{image=\"a:1\"} 1",
            "transship_replica_start_seconds_bucket{le=\"0.25\"} 0",
            "transship_replica_start_seconds_bucket{le=\"0.5\"} 1",
            "transship_replica_ends_total{image=\"a:1\",reason=\"idle\"} 1",
            "transship_replica_ends_total{image=\"a:1\",reason=\"ended\"} 0",
            "transship_lease_wait_seconds_count{image=\"a:1\"} 1",
            "transship_lease_errors_total{kind=\"busy\"} 1",
            "transship_builds_total{outcome=\"cancelled\"} 1",
            "transship_builds_total{outcome=\"failed\"} 1",
            "transship_build_seconds_count 3",
            "transship_lease_waiting 1",
        ] {
            assert!(text_now.lines().any(|found| found == line), "{line} is not in\n{text_now}");
        }
        assert!(!text_now.contains("secret"));
        drop(waiting);
        assert_eq!(metrics.waiting(), 0);
    }

    #[test]
    fn a_hostile_name_is_one_label() {
        let metrics = Metrics::default();
        metrics.started("a\"} 1\nevil{x=\"\\", Duration::ZERO);
        let found = text(&metrics);
        assert!(found.contains("transship_replica_starts_total{image=\"a\\\"} 1\\nevil{x=\\\"\\\\\"} 1\n"), "{found}");
        assert!(found.lines().all(|line| !line.starts_with("evil")));
    }
}
