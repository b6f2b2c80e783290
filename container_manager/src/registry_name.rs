//! Which registry a reference names, as files of logins have it.

use udf_project::reference::ImageReference;

/// What docker's and podman's files of logins call Docker Hub.
const DOCKER_HUB: [&str; 2] = ["https://index.docker.io/v1/", "docker.io"];

/// The keys under which files of logins may have the registry of a reference. Anything that is no reference has none.
pub fn keys_of(reference: &str) -> Vec<String> {
    let Ok(reference) = ImageReference::parse(reference) else { return Vec::new() };
    // The first part is a registry if it looks like a host.
    let host = match reference.repository.split_once('/') {
        Some((host, _)) if host == "localhost" || host.contains(['.', ':']) => Some(host),
        Some((host, _)) if host.contains(|c: char| c.is_ascii_uppercase()) => Some(host),
        _ => None,
    };
    match host {
        Some(host) if !matches!(host, "docker.io" | "index.docker.io") => vec![host.to_string()],
        _ => DOCKER_HUB.map(str::to_string).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_what_looks_like_a_host() {
        for (reference, key) in [
            ("registry.example/team/a:1", "registry.example"),
            ("localhost:5000/a", "localhost:5000"),
            ("localhost/a", "localhost"),
            ("Registry/a", "Registry"),
            ("team/a", DOCKER_HUB[0]),
            ("a:1", DOCKER_HUB[0]),
            ("index.docker.io/team/a", DOCKER_HUB[0]),
            ("docker.io/a", DOCKER_HUB[0]),
        ] {
            assert_eq!(keys_of(reference)[0], key, "{reference}");
        }
        assert!(keys_of("--all-tags").is_empty());
    }
}
