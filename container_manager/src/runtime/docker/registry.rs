//! Sending images to a registry, and the references by which registries know images.

use udf_project::reference::ImageReference;
use udf_types::{Error, Kind, Result};

use super::cli::DockerCli;
use crate::runtime::program::run;

/// Sends an image to a registry under `reference`; the reference by which the registry knows its content.
pub(super) fn push(cli: &DockerCli, image: &str, reference: &str) -> Result<String> {
    let repository = parse_reference(reference)?.repository;
    cli.resolve(image)?;
    if image != reference {
        cli.tag(image, reference)?;
    }
    let what = format!("push image \"{reference}\"");
    run(&mut cli.command(["push", reference]), Kind::Unreachable, &what)
        .map_err(|error| advise_login(error, cli.program))?;
    let digests = cli.inspect_image(reference)?.repo_digests.unwrap_or_default();
    let found = digests.into_iter().find(|digest| digest.split('@').next() == Some(repository.as_str()));
    found.ok_or_else(|| Error::new(Kind::Unreachable, format!("could not {what}: the registry gave no digest")))
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

pub(super) fn advise_login(error: Error, program: &str) -> Error {
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
}
