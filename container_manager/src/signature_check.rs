//! Signatures of images: a program of the operator's choice, such as cosign, that looks at them before an image is pulled.

use std::process::Command;

use udf_project::reference::is_digest;
use udf_types::{Error, Kind, Result};

use crate::runtime::program::run;

/// Runs `verifier`, a program and its arguments with spaces between them, with the reference as its last argument. What it
/// refuses, and a reference that names no digest, is an error: a tag could stand for something else a moment later.
pub fn check(verifier: &str, reference: &str) -> Result<()> {
    let mut words = verifier.split_whitespace();
    let Some(program) = words.next() else {
        return Err(Error::invalid_definition("the program that verifies signatures has no name"));
    };
    if !reference.split_once('@').is_some_and(|(_, digest)| is_digest(digest)) {
        return Err(Error::new(Kind::NotAllowed, format!("\"{reference}\" names no digest, which signatures are for"))
            .with_hint("Pull name@sha256:..., which \"transship push\" prints."));
    }
    // No option: a reference begins with a letter or a digit.
    run(Command::new(program).args(words).arg(reference), Kind::NotAllowed, &format!("verify image \"{reference}\""))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_program_lets_through_passes() {
        let reference = format!("registry.example/f@sha256:{}", "0".repeat(64));
        check("test -n", &reference).unwrap();
        assert!(check("test -z", &reference).unwrap_err().message().contains("verify image"));
        for (verifier, reference) in
            [("test -n", "f:1"), ("test -n", "f@sha256:0"), ("test -n", "f"), (" ", &reference)]
        {
            assert!(check(verifier, reference).is_err(), "{verifier} {reference}");
        }
    }
}
