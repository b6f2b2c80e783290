//! Descriptions that run an image elsewhere, as the engines that then call it by endpoint want it: locked down as the
//! manager's own replicas are, with the manifest's limits and replicas.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use udf_protocol::manifest::Manifest;
use udf_protocol::{Error, Kind, Result};

use crate::flags::DeployTarget;
use crate::sandbox::REPLICA_ID;

/// The port on which a deployed server answers Flight.
pub const FLIGHT_PORT: u16 = 8815;
/// The port on which a deployed server answers JSON.
pub const JSON_PORT: u16 = 8080;

/// The ports of a host's loopback that lead to the first replica; further ones take the ports that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// For Flight.
    pub flight_port: u16,
    /// For JSON.
    pub json_port: u16,
}

/// The file for `reference`, an image as the target's hosts can get it. The service's name is the image's, by which others
/// in its network call it: `grpc://NAME:8815` or `http://NAME:8080`. A Compose project's names mean nothing outside of its
/// network, so there a database on the host itself calls the ports of its loopback.
pub fn describe(manifest: &Manifest, reference: &str, target: DeployTarget, published: Published) -> Result<String> {
    let name = service_name(&manifest.name)?;
    match target {
        DeployTarget::Compose => compose(manifest, reference, &name, published),
        DeployTarget::Kubernetes => Ok(kubernetes(manifest, reference, &name)),
    }
}

/// The last part of the image's name as a DNS label (RFC 1123).
fn service_name(image: &str) -> Result<String> {
    let last = image.rsplit('/').next().unwrap_or(image);
    let name = last.replace(['_', '.'], "-");
    let is_label = name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if is_label {
        return Ok(name);
    }
    Err(Error::new(Kind::InvalidDefinition, format!("\"{image}\" cannot be the name of a service"))
        .with_hint("A service has at most 63 lower-case letters, digits and \"-\"."))
}

/// YAML's double-quoted strings are JSON's.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A port of the host for each replica.
fn host_ports(first: u16, replicas: u32) -> Option<RangeInclusive<u16>> {
    let further = u16::try_from(replicas.max(1) - 1).ok()?;
    Some(first..=first.checked_add(further)?).filter(|_| first > 0)
}

/// What Compose publishes: a port, or a range of which each replica takes one.
fn publish(ports: &RangeInclusive<u16>, inside: u16) -> String {
    let (first, last) = (ports.start(), ports.end());
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    quote(&format!("127.0.0.1:{range}:{inside}"))
}

/// The endpoint that names all of them, which take turns.
fn endpoint(scheme: &str, ports: &RangeInclusive<u16>) -> String {
    ports.clone().map(|port| format!("{scheme}://127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
}

fn compose(manifest: &Manifest, reference: &str, name: &str, published: Published) -> Result<String> {
    let (limits, replicas) = (&manifest.limits, manifest.replicas);
    let ports = |first| host_ports(first, replicas);
    let (Some(flight), Some(json)) = (ports(published.flight_port), ports(published.json_port)) else {
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!("there are not {replicas} ports from {} and {} on", published.flight_port, published.json_port),
        ));
    };
    if flight.start() <= json.end() && json.start() <= flight.end() {
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!(
                "the ports {} to {} are for Flight and for JSON",
                flight.start().max(json.start()),
                flight.end().min(json.end())
            ),
        )
        .with_hint("Choose others with --flight-port and --json-port; each replica takes one of each."));
    }
    let mut file = format!(
        "# Functions of image {}, for Docker Compose. Databases on this host, and nobody beyond it, reach them at the endpoint\n\
         # {}\n# or {}.\n",
        manifest.image(),
        endpoint("grpc", &flight),
        endpoint("http", &json)
    );
    let _ = write!(
        file,
        "# Other services of the network reach them at grpc://{name}:{FLIGHT_PORT} and http://{name}:{JSON_PORT}.\n\
         services:\n  {name}:\n    image: {}\n    environment:\n      TRANSSHIP_FLIGHT_PORT: \"{FLIGHT_PORT}\"\n      \
         TRANSSHIP_HTTP_PORT: \"{JSON_PORT}\"\n    ports: [{}, {}]\n    \
         user: \"{REPLICA_ID}:{REPLICA_ID}\"\n    read_only: true\n    tmpfs: [/tmp]\n    cap_drop: [ALL]\n    \
         security_opt: [\"no-new-privileges:true\"]\n    init: true\n    restart: unless-stopped\n    \
         pids_limit: {}\n    stop_grace_period: 15s\n    deploy:\n      replicas: {replicas}\n      resources:\n        limits:\n          \
         cpus: \"{}\"\n          memory: {}M\n",
        quote(reference),
        publish(&flight, FLIGHT_PORT),
        publish(&json, JSON_PORT),
        limits.pids,
        limits.cpus,
        limits.memory_mb
    );
    if !limits.network {
        // Docker publishes no ports of networks that are internal.
        file.push_str(
            "    networks: [functions]\nnetworks:\n  # The functions asked for no network. Docker publishes no port of an internal one; from this one, whose addresses\n  \
             # are not translated, other hosts cannot be talked to, but this host can. Without databases on this host, remove\n  \
             # \"ports\" above and write \"internal: true\" in place of \"driver_opts\".\n  \
             functions:\n    driver_opts:\n      com.docker.network.bridge.enable_ip_masquerade: \"false\"\n",
        );
    }
    Ok(file)
}

fn kubernetes(manifest: &Manifest, reference: &str, name: &str) -> String {
    let (limits, replicas) = (&manifest.limits, manifest.replicas);
    let labels = format!("app.kubernetes.io/name: {name}");
    let mut file = format!(
        "# Functions of image {}, for Kubernetes. The service has no address of its own: its name stands for all replicas,\n\
         # among which engines balance. They reach it at grpc://{name}:{FLIGHT_PORT} and http://{name}:{JSON_PORT}.\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\n  labels:\n    {labels}\nspec:\n  \
         replicas: {replicas}\n  selector:\n    matchLabels:\n      {labels}\n  template:\n    metadata:\n      labels:\n        \
         {labels}\n    spec:\n      automountServiceAccountToken: false\n      enableServiceLinks: false\n      \
         terminationGracePeriodSeconds: 15\n      securityContext:\n        runAsNonRoot: true\n        \
         runAsUser: {REPLICA_ID}\n        runAsGroup: {REPLICA_ID}\n        seccompProfile:\n          type: RuntimeDefault\n      \
         containers:\n        - name: {name}\n          image: {}\n          env:\n            \
         - name: TRANSSHIP_FLIGHT_PORT\n              value: \"{FLIGHT_PORT}\"\n            \
         - name: TRANSSHIP_HTTP_PORT\n              value: \"{JSON_PORT}\"\n          ports:\n            \
         - name: flight\n              containerPort: {FLIGHT_PORT}\n            \
         - name: json\n              containerPort: {JSON_PORT}\n          resources:\n            limits:\n              \
         cpu: \"{}\"\n              memory: {}Mi\n          securityContext:\n            allowPrivilegeEscalation: false\n            \
         readOnlyRootFilesystem: true\n            capabilities:\n              drop: [ALL]\n",
        manifest.image(),
        quote(reference),
        limits.cpus,
        limits.memory_mb
    );
    // A server is ready when it answers its greeting (docs/protocol.md §8), and alive as long as it does.
    for (probe, period, failures) in [("startupProbe", 1, 120), ("readinessProbe", 5, 2), ("livenessProbe", 10, 6)] {
        let _ = write!(
            file,
            "          {probe}:\n            httpGet:\n              path: /v1\n              port: json\n            \
             periodSeconds: {period}\n            timeoutSeconds: 5\n            failureThreshold: {failures}\n"
        );
    }
    let _ = write!(
        file,
        "          volumeMounts:\n            - name: tmp\n              mountPath: /tmp\n      volumes:\n        - name: tmp\n          \
         emptyDir: {{}}\n---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  labels:\n    {labels}\nspec:\n  \
         clusterIP: None\n  selector:\n    {labels}\n  ports:\n    - name: flight\n      port: {FLIGHT_PORT}\n      \
         targetPort: flight\n    - name: json\n      port: {JSON_PORT}\n      targetPort: json\n"
    );
    if !limits.network {
        let _ = write!(
            file,
            "---\n# The functions asked for no network: they answer, and open no connections of their own.\n\
             apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: {name}\nspec:\n  podSelector:\n    \
             matchLabels:\n      {labels}\n  policyTypes: [Egress]\n  egress: []\n"
        );
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: Published = Published { flight_port: FLIGHT_PORT, json_port: JSON_PORT };

    fn composed(definition: &str, flight_port: u16, json_port: u16) -> Result<String> {
        let manifest =
            format!("name = 'f'\nversion = '1'\ntemplate = 'go'\nfunctions = [{{ name = 'f' }}]\n{definition}");
        let published = Published { flight_port, json_port };
        describe(&Manifest::parse(&manifest).unwrap(), "f:1", DeployTarget::Compose, published)
    }

    #[test]
    fn a_database_on_the_host_reaches_each_replica_on_the_loopback() {
        let file = composed("", FLIGHT_PORT, JSON_PORT).unwrap();
        assert!(file.contains("\n# grpc://127.0.0.1:8815\n# or http://127.0.0.1:8080.\n"), "{file}");
        assert!(file.contains("\n    ports: [\"127.0.0.1:8815:8815\", \"127.0.0.1:8080:8080\"]\n"), "{file}");
        // Docker would publish nothing.
        assert!(!file.lines().any(|line| line.trim() == "internal: true"), "{file}");
        assert!(file.contains("enable_ip_masquerade: \"false\""), "{file}");
        let file = composed("replicas = 3\nlimits = { network = true }", 9000, 9100).unwrap();
        assert!(
            file.contains(
                "\n# grpc://127.0.0.1:9000,grpc://127.0.0.1:9001,grpc://127.0.0.1:9002\n# or http://127.0.0.1:9100,"
            ),
            "{file}"
        );
        assert!(file.contains("ports: [\"127.0.0.1:9000-9002:8815\", \"127.0.0.1:9100-9102:8080\"]"), "{file}");
        assert!(file.contains("grpc://f:8815 and http://f:8080") && !file.contains("networks"), "{file}");
    }

    #[test]
    fn ports_are_enough_and_apart() {
        for (flight_port, json_port) in [(8815, 8815), (8815, 8816), (8816, 8815), (65535, 80), (0, 80)] {
            assert!(composed("replicas = 2", flight_port, json_port).is_err(), "{flight_port} {json_port}");
        }
        assert!(composed("replicas = 2", 8815, 8817).is_ok());
    }

    #[test]
    fn services_have_dns_names() {
        assert_eq!(service_name("team/my_udf.v2").unwrap(), "my-udf-v2");
        assert!(service_name(&"x".repeat(64)).is_err());
    }

    #[test]
    fn limits_and_the_reference_are_in_both() {
        let manifest = Manifest::parse(
            "name = 'team/my_udf'\nversion = '2'\ntemplate = 'go'\nreplicas = 3\nfunctions = [{ name = 'f' }]\n\
             limits = { memory_mb = 300, cpus = 0.5 }",
        )
        .unwrap();
        for target in [DeployTarget::Compose, DeployTarget::Kubernetes] {
            let file = describe(&manifest, "registry.example/team/my_udf:2", target, PUBLISHED).unwrap();
            for part in ["\"registry.example/team/my_udf:2\"", "replicas: 3", "\"0.5\"", "memory: 300M", "my-udf"] {
                assert!(file.contains(part), "{part} in {file}");
            }
        }
    }
}
