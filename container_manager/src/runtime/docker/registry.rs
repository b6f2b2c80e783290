//! Sending images to a registry, and the references by which registries know images.

use udf_project::reference::ImageReference;
use udf_types::{Error, Kind, Result};

use super::cli::DockerCli;
use super::settings::Settings;
use crate::engine_images::is_built_for_engines;
use crate::runtime::image_store::TransferOptions;
use crate::runtime::program::{TRANSFER_TIMEOUT, run_within};

/// Registries whose names are also written without them: Docker Hub, and what podman builds here.
const LOCAL_REGISTRIES: [&str; 3] = ["docker.io", "index.docker.io", "localhost"];

/// Sends an image to a registry under `reference`; the reference by which the registry knows its content.
pub(super) fn push(cli: &DockerCli, image: &str, reference: &str, options: &TransferOptions) -> Result<String> {
    let repository = parse_reference(reference)?.repository;
    // It would take the name.
    if image != reference && is_built_for_engines(local_name(&repository).unwrap_or_default()) {
        let message = format!("no image is called \"{reference}\" that an engine has not built");
        return Err(Error::new(Kind::NotAllowed, message).with_hint("Push it under another name."));
    }
    cli.resolve(image)?;
    if image != reference {
        cli.tag(image, reference)?;
    }
    let what = format!("push image \"{reference}\"");
    transfer(cli, "push", reference, options)?;
    let digests = cli.inspect_image(reference)?.repo_digests.unwrap_or_default();
    let found = digests.into_iter().find(|digest| digest.split('@').next() == Some(repository.as_str()));
    found.ok_or_else(|| Error::new(Kind::Unreachable, format!("could not {what}: the registry gave no digest")))
}

/// Runs `push` or `pull` with the caller's login.
pub(super) fn transfer(cli: &DockerCli, verb: &str, reference: &str, options: &TransferOptions) -> Result<()> {
    let settings = Settings::with(options.login.as_ref(), reference)?;
    let mut command = cli.command([verb, reference]);
    settings.apply(&mut command);
    let what = format!("{verb} image \"{reference}\"");
    run_within(&mut command, Kind::Unreachable, &what, TRANSFER_TIMEOUT, &options.cancel)
        .map(drop)
        .map_err(|error| advise_login(error, cli.program))
}

/// The parts of a reference by which a registry knows an image.
pub(super) fn parse_reference(reference: &str) -> Result<ImageReference> {
    let parsed = ImageReference::parse(reference)?;
    if !parsed.repository.is_empty() {
        return Ok(parsed);
    }
    Err(Error::new(Kind::InvalidDefinition, format!("\"{reference}\" names no repository"))
        .with_hint("Write registry/repository:tag, such as registry.example/team/flights:1.0."))
}

/// A repository as SQL names it; none if it is a registry's. Docker takes the first part for a registry if it looks like a host.
pub(super) fn local_name(repository: &str) -> Option<&str> {
    let name = match repository.split_once('/') {
        Some((host, name)) if LOCAL_REGISTRIES.contains(&host) => name,
        Some((host, _)) if host.contains(['.', ':']) || host.contains(|c: char| c.is_ascii_uppercase()) => return None,
        _ => repository,
    };
    Some(name.strip_prefix("library/").unwrap_or(name))
}

fn advise_login(error: Error, program: &str) -> Error {
    error.with_hint(format!(
        "Log in with \"{program} login\" if the registry asks for a user; {program} must trust its certificate."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_repositories_are_references() {
        for reference in ["", "-x", "--all-tags", "a b", "a\n", &format!("sha256:{}", "0".repeat(64))] {
            assert!(parse_reference(reference).is_err(), "{reference:?}");
        }
    }

    #[test]
    fn names_of_docker_hub_are_local_ones() {
        for (repository, local) in [
            ("flights", Some("flights")),
            ("team/flights", Some("team/flights")),
            ("library/flights", Some("flights")),
            ("docker.io/library/transship-inline", Some("transship-inline")),
            ("index.docker.io/transship-inline", Some("transship-inline")),
            ("localhost/transship-library/a", Some("transship-library/a")),
            ("localhost:5000/flights", None),
            ("registry.example/team/flights", None),
            ("Registry/flights", None),
            ("[::1]:5000/flights", None),
        ] {
            assert_eq!(local_name(repository), local, "{repository}");
        }
    }
}
