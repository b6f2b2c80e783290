//! Descriptions that run an image elsewhere, as the engines that then call it by endpoint want it: locked down as the
//! manager's own replicas are, with the manifest's limits and replicas, behind a gateway that asks for TLS and a token.

mod compose;
mod gateway;
mod kubernetes;

use clap::ValueEnum;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

/// The port on which a deployed server answers Flight.
pub const FLIGHT_PORT: u16 = 8815;
/// The port on which a deployed server answers JSON.
pub const JSON_PORT: u16 = 8080;
/// The image of the gateway.
pub const GATEWAY: &str = "nginx:1.28";

/// Descriptors of a process of the functions, and the size of their `/tmp` in MB, as the manager's replicas have them.
const DESCRIPTORS: u32 = 4096;
const TMP_MB: u64 = 64;

/// System that runs containers on other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeployTarget {
    /// Docker Compose.
    Compose,
    /// Kubernetes.
    Kubernetes,
}

/// The image of the functions, as the target's hosts can get it.
struct Image {
    reference: String,
    /// Whether it is there already. A registry's image of the same name is another one.
    is_local: bool,
}

/// How a deployment is reached, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The gateway's image.
    pub gateway: String,
    /// With Compose, the address of the host whose ports lead to the replicas.
    pub address: std::net::IpAddr,
    /// The port for Flight of the first replica; further ones take the ports that follow.
    pub flight_port: u16,
    /// The same for JSON.
    pub json_port: u16,
}

/// The file for `reference`, an image as the target's hosts can get it; without one it is the image of that name that they have
/// already, and none is pulled in its place. The service's name is the image's, by which others
/// in its network call it: `grpcs://NAME:8815` or `https://NAME:8080`. A Compose project's names mean nothing outside of its
/// network, so a database on the host itself calls the ports of its loopback.
pub fn describe(
    manifest: &Manifest,
    reference: Option<&str>,
    target: DeployTarget,
    published: &Published,
) -> Result<String> {
    let name = service_name(&manifest.name)?;
    let image =
        Image { reference: reference.map_or_else(|| manifest.image(), str::to_string), is_local: reference.is_none() };
    match target {
        DeployTarget::Compose => compose::describe(manifest, &image, &name, published),
        DeployTarget::Kubernetes => Ok(kubernetes::describe(manifest, &image, &name, &published.gateway)),
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

#[cfg(test)]
mod tests {
    use udf_project::manifest::Limits;

    use super::*;

    fn published(flight_port: u16, json_port: u16) -> Published {
        Published { gateway: GATEWAY.into(), address: [127, 0, 0, 1].into(), flight_port, json_port }
    }

    fn composed(definition: &str, flight_port: u16, json_port: u16) -> Result<String> {
        let manifest =
            format!("name = 'f'\nversion = '1'\ntemplate = 'go'\nfunctions = [{{ name = 'f' }}]\n{definition}");
        let manifest = Manifest::parse(&manifest).unwrap();
        describe(&manifest, Some("f:1"), DeployTarget::Compose, &published(flight_port, json_port))
    }

    #[test]
    fn a_database_on_the_host_reaches_each_replica_on_the_loopback() {
        let file = composed("", FLIGHT_PORT, JSON_PORT).unwrap();
        assert!(file.contains("\n# grpcs://127.0.0.1:8815\n# or https://127.0.0.1:8080.\n"), "{file}");
        assert!(file.contains("\n    ports: [\"127.0.0.1:8815:8815\", \"127.0.0.1:8080:8080\"]\n"), "{file}");
        let file = composed("replicas = 3", 9000, 9100).unwrap();
        let endpoints =
            "\n# grpcs://127.0.0.1:9000,grpcs://127.0.0.1:9001,grpcs://127.0.0.1:9002\n# or https://127.0.0.1:9100,";
        assert!(file.contains(endpoints), "{file}");
        assert!(
            file.contains("ports: [\"127.0.0.1:9000-9002:9000-9002\", \"127.0.0.1:9100-9102:9100-9102\"]"),
            "{file}"
        );
        for part in [
            "listen 9002 ssl http2;",
            "listen 9102 ssl;",
            "/run/functions/3/http.sock",
            "\n  f-3:\n",
            "\n  sockets-3:\n",
        ] {
            assert!(file.contains(part), "{part} in {file}");
        }
    }

    #[test]
    fn only_functions_that_asked_for_a_network_have_one() {
        let file = composed("", FLIGHT_PORT, JSON_PORT).unwrap();
        assert!(file.contains("network_mode: none"), "{file}");
        let file = composed("limits = { network = true }", FLIGHT_PORT, JSON_PORT).unwrap();
        assert!(!file.contains("network_mode"), "{file}");
    }

    #[test]
    fn a_local_image_is_never_pulled() {
        let manifest =
            Manifest::parse("name = 'f'\nversion = '1'\ntemplate = 'go'\nfunctions = [{ name = 'f' }]").unwrap();
        for (target, words) in [
            (DeployTarget::Compose, "\n    image: \"f:1\"\n    environment:"),
            (DeployTarget::Kubernetes, "\n          image: \"f:1\"\n          env:"),
        ] {
            let published = published(FLIGHT_PORT, JSON_PORT);
            let file = describe(&manifest, Some("f:1"), target, &published).unwrap();
            assert!(file.contains(words) && !file.to_lowercase().contains("never"), "{file}");
            let file = describe(&manifest, None, target, &published).unwrap();
            assert!(file.contains("pull_policy: never\n") || file.contains("imagePullPolicy: Never\n"), "{file}");
        }
    }

    #[test]
    fn no_container_takes_what_it_was_not_given() {
        let file = composed("replicas = 2", FLIGHT_PORT, JSON_PORT).unwrap();
        for part in [
            "user: \"65534:65534\"",
            "read_only: true",
            "tmpfs: [\"/tmp:rw,noexec,nosuid,nodev,size=",
            "ipc: private",
            "cap_drop: [ALL]",
            "no-new-privileges:true",
            "pids_limit: ",
            "memswap_limit: ",
            "ulimits: {core: 0, nofile: ",
            "max-size: 10m",
        ] {
            // The gateway and both servers.
            assert_eq!(file.matches(part).count(), 3, "{part} in {file}");
        }
        let manifest =
            Manifest::parse("name = 'f'\nversion = '1'\ntemplate = 'go'\nfunctions = [{ name = 'f' }]").unwrap();
        let file = describe(&manifest, None, DeployTarget::Kubernetes, &published(FLIGHT_PORT, JSON_PORT)).unwrap();
        assert_eq!(file.matches("emptyDir:").count(), file.matches("sizeLimit: ").count(), "{file}");
        for part in ["readOnlyRootFilesystem: true", "ephemeral-storage: ", "drop: [ALL]"] {
            assert_eq!(file.matches(part).count(), 2, "{part} in {file}");
        }
        let policy = "policyTypes: [Ingress, Egress]\n  ingress:\n    - ports:\n        - port: 8815\n        - port: 8080\n  egress: []\n";
        assert!(file.ends_with(policy), "{file}");
        let manifest = Manifest { limits: Limits { network: true, ..manifest.limits.clone() }, ..manifest };
        let file = describe(&manifest, None, DeployTarget::Kubernetes, &published(FLIGHT_PORT, JSON_PORT)).unwrap();
        assert!(file.contains("policyTypes: [Ingress]\n") && !file.contains("egress: "), "{file}");
    }

    #[test]
    fn nothing_is_called_without_a_token() {
        let manifest =
            Manifest::parse("name = 'f'\nversion = '1'\ntemplate = 'go'\nfunctions = [{ name = 'f' }]").unwrap();
        for target in [DeployTarget::Compose, DeployTarget::Kubernetes] {
            let file = describe(&manifest, None, target, &published(FLIGHT_PORT, JSON_PORT)).unwrap();
            assert_eq!(
                file.matches("_pass grpc://unix:").count() + file.matches("_pass http://unix:").count(),
                3,
                "{file}"
            );
            assert_eq!(file.matches("may_call = 0)").count(), 2, "{file}");
            // Nor does anything of the tokens' file reach nginx but through the script that reads them.
            assert!(!file.contains("include /run/gateway") && file.contains("include /tmp/tokens;"), "{file}");
            // The servers have no ports of their own.
            assert!(!file.contains("TRANSSHIP_FLIGHT_PORT") && !file.contains("TRANSSHIP_HTTP_PORT"), "{file}");
        }
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
             limits = { memory_mb = 300, cpus = 0.5, gpus = 2 }",
        )
        .unwrap();
        for (target, gpus) in
            [(DeployTarget::Compose, "count: 2\n"), (DeployTarget::Kubernetes, "limits:\n              cpu: \"0.5\"")]
        {
            let published = published(FLIGHT_PORT, JSON_PORT);
            let file = describe(&manifest, Some("registry.example/team/my_udf:2"), target, &published).unwrap();
            for part in ["\"registry.example/team/my_udf:2\"", "\"0.5\"", "memory: 300M", "my-udf", "nginx:1.28"] {
                assert!(file.contains(part), "{part} in {file}");
            }
            assert!(file.contains(gpus) && file.contains("gpu"), "{file}");
        }
    }
}
