//! Descriptions that run an image elsewhere, as the engines that then call it by endpoint want it: locked down as the
//! manager's own replicas are, with the manifest's limits and replicas.

use std::fmt::Write as _;

use udf_protocol::manifest::Manifest;
use udf_protocol::{Error, Kind, Result};

use crate::flags::DeployTarget;
use crate::sandbox::REPLICA_ID;

/// The ports on which a deployed server answers Flight and JSON.
const FLIGHT_PORT: u16 = 8815;
const JSON_PORT: u16 = 8080;

/// The file for `reference`, an image as the target's hosts can get it. The service's name is the image's, by which the
/// functions' endpoint names it: `grpc://NAME:8815` or `http://NAME:8080`.
pub fn describe(manifest: &Manifest, reference: &str, target: DeployTarget) -> Result<String> {
    let name = service_name(&manifest.name)?;
    Ok(match target {
        DeployTarget::Compose => compose(manifest, reference, &name),
        DeployTarget::Kubernetes => kubernetes(manifest, reference, &name),
    })
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

fn compose(manifest: &Manifest, reference: &str, name: &str) -> String {
    let (limits, replicas) = (&manifest.limits, manifest.replicas);
    let mut file = format!(
        "# Functions of image {}, for Docker Compose. Other services of the network reach them at\n",
        manifest.image()
    );
    let _ = write!(
        file,
        "# grpc://{name}:{FLIGHT_PORT} and http://{name}:{JSON_PORT}.\n\
         services:\n  {name}:\n    image: {}\n    environment:\n      TRANSSHIP_FLIGHT_PORT: \"{FLIGHT_PORT}\"\n      \
         TRANSSHIP_HTTP_PORT: \"{JSON_PORT}\"\n    expose: [\"{FLIGHT_PORT}\", \"{JSON_PORT}\"]\n    \
         user: \"{REPLICA_ID}:{REPLICA_ID}\"\n    read_only: true\n    tmpfs: [/tmp]\n    cap_drop: [ALL]\n    \
         security_opt: [\"no-new-privileges:true\"]\n    init: true\n    restart: unless-stopped\n    \
         pids_limit: {}\n    stop_grace_period: 15s\n    deploy:\n      replicas: {replicas}\n      resources:\n        limits:\n          \
         cpus: \"{}\"\n          memory: {}M\n",
        quote(reference),
        limits.pids,
        limits.cpus,
        limits.memory_mb
    );
    if !limits.network {
        file.push_str("    networks: [functions]\nnetworks:\n  # The functions asked for no network: none leads out of this one.\n  functions:\n    internal: true\n");
    }
    file
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
            let file = describe(&manifest, "registry.example/team/my_udf:2", target).unwrap();
            for part in ["\"registry.example/team/my_udf:2\"", "replicas: 3", "\"0.5\"", "memory: 300M", "my-udf"] {
                assert!(file.contains(part), "{part} in {file}");
            }
        }
    }
}
