//! What is true of the manager at one moment.

use std::collections::BTreeMap;

use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use udf_client::control::{CircuitInfo, ReplicaInfo};

use crate::config::Config;
use crate::images::Images;
use crate::metrics::{Labels, Metrics};
use crate::pool::Pool;

/// The moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) runtime: String,
    pub(super) replicas: Vec<ReplicaInfo>,
    /// Without what containers have written.
    pub(super) circuits: Vec<CircuitInfo>,
    pub(super) builds_running: u64,
    pub(super) builds_waiting: u64,
    pub(super) most_builds: u64,
    pub(super) leases_waiting: u64,
    pub(super) most_containers: u64,
    /// The sum of the containers' memory limits.
    pub(super) reserved_mb: u64,
    pub(super) most_memory_mb: u64,
}

impl Snapshot {
    /// This moment.
    pub(super) fn take(pool: &Pool, images: &Images, config: &Config) -> Snapshot {
        let (running, waiting) = images.builds();
        let mut circuits = pool.circuits(false);
        // Even its first line may quote a container, and whoever reaches the door is nobody in particular.
        circuits.iter_mut().for_each(|circuit| circuit.last.clear());
        Snapshot {
            runtime: pool.runtime_name().to_string(),
            replicas: pool.list(|_| false),
            circuits,
            builds_running: running as u64,
            builds_waiting: waiting as u64,
            most_builds: config.max_builds as u64,
            leases_waiting: u64::try_from(pool.metrics().waiting()).unwrap_or(0),
            most_containers: config.max_containers as u64,
            reserved_mb: pool.reserved_memory_mb(),
            most_memory_mb: config.max_memory_mb,
        }
    }

    /// Leases of all replicas.
    pub(super) fn leases(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.leases as u64).sum()
    }

    /// Appends it as gauges in Prometheus' text format.
    pub(super) fn write(&self, metrics: &Metrics, text: &mut String) {
        let mut registry = Registry::default();
        let (mut replicas, mut leases, mut states, mut endings) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for replica in &self.replicas {
            let image = metrics.image_label(&replica.image);
            *replicas.entry([("image", image.clone()), ("state", replica.state.clone())]).or_default() += 1;
            *leases.entry([("image", image)]).or_default() += replica.leases as u64;
        }
        for circuit in &self.circuits {
            let image = metrics.image_label(&circuit.image);
            *states.entry([("image", image.clone()), ("state", circuit.state.clone())]).or_default() += 1;
            *endings.entry([("image", image)]).or_default() += u64::from(circuit.endings);
        }
        family(&mut registry, "transship_replicas", "Replicas by image and state", replicas);
        family(&mut registry, "transship_leases", "Leases by image", leases);
        family(&mut registry, "transship_circuits", "Images whose replicas ended by themselves, by state", states);
        family(&mut registry, "transship_circuit_endings", "Replicas that ended by themselves in a row", endings);
        let info = [("version", env!("CARGO_PKG_VERSION").to_string()), ("runtime", self.runtime.clone())];
        family(&mut registry, "transship_manager", "The manager", BTreeMap::from([(info, 1)]));
        for (name, help, value) in [
            ("transship_containers", "Containers of all images", self.replicas.len() as u64),
            ("transship_containers_limit", "Limit of containers of all images", self.most_containers),
            ("transship_memory_reserved_bytes", "Sum of the containers' memory limits", self.reserved_mb << 20),
            ("transship_memory_limit_bytes", "Limit of the sum of memory limits", bytes(self.most_memory_mb)),
            ("transship_builds_running", "Builds for engines that run", self.builds_running),
            ("transship_builds_waiting", "Builds for engines that wait", self.builds_waiting),
            ("transship_builds_limit", "Limit of builds that run side by side", self.most_builds),
        ] {
            let gauge: Gauge = Gauge::default();
            gauge.set(clamp(value));
            registry.register(name, help, gauge);
        }
        encode(text, &registry).expect("a string can be written to");
    }
}

fn family<const N: usize>(registry: &mut Registry, name: &str, help: &str, values: BTreeMap<Labels<N>, u64>) {
    let family: Family<Labels<N>, Gauge> = Family::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(clamp(value));
    }
    registry.register(name, help, family);
}

fn bytes(megabytes: u64) -> u64 {
    megabytes.saturating_mul(1 << 20)
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn replica(name: &str, image: &str, state: &str, leases: usize) -> ReplicaInfo {
        let (name, image, state) = (name.to_string(), image.to_string(), state.to_string());
        ReplicaInfo { name, image, digest: "sha256:1".into(), state, leases, age_s: 7, holders: Vec::new() }
    }

    #[test]
    fn a_moment_is_gauges() {
        let circuit = CircuitInfo {
            image: "b:1".into(),
            digest: "sha256:2".into(),
            state: "open".into(),
            endings: 9,
            wait_s: 30,
            last: "the secret of a handler".into(),
        };
        let snapshot = Snapshot {
            runtime: "process".into(),
            replicas: vec![
                replica("r1", "a:1", "ready", 2),
                replica("r2", "a:1", "ready", 1),
                replica("r3", "a\"}\n:1", "starting", 0),
            ],
            circuits: vec![circuit],
            most_memory_mb: u64::MAX,
            reserved_mb: 3,
            ..Snapshot::default()
        };
        let mut text = String::new();
        snapshot.write(&Metrics::default(), &mut text);
        for line in [
            "transship_replicas{image=\"a:1\",state=\"ready\"} 2",
            "transship_replicas{image=\"a\\\"}\\n:1\",state=\"starting\"} 1",
            "transship_leases{image=\"a:1\"} 3",
            "transship_circuits{image=\"b:1\",state=\"open\"} 1",
            "transship_circuit_endings{image=\"b:1\"} 9",
            "transship_containers 3",
            "transship_memory_reserved_bytes 3145728",
            "transship_memory_limit_bytes 9223372036854775807",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("secret"));
    }
}
