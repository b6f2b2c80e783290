//! Pulling an image from a registry. Docker moves the tag that is pulled before anybody can look at the image, and whoever pushed
//! it chose the further names that it asks for. So what each name stood for is noted first, and put back unless the image is
//! accepted.

use std::collections::HashSet;

use udf_client::control::ImageInfo;
use udf_types::{Error, Kind, Result};

use super::cli::DockerCli;
use super::inspected::InspectedImage;
use super::registry::{local_name, parse_reference, transfer};
use crate::engine_images::is_built_for_engines;
use crate::runtime::image_store::TransferOptions;
use crate::runtime::program::run;

/// Gets an image, and gives it the names that it asks for. A name that SQL may use, of another image, is taken from that only if
/// the new one `replaces` it.
pub(super) fn pull(cli: &DockerCli, reference: &str, replaces: bool, options: &TransferOptions) -> Result<ImageInfo> {
    let parsed = parse_reference(reference)?;
    let local = local_name(&parsed.repository);
    check_is_not_built_for_engines(reference, local.unwrap_or_default())?;
    let mut names = Names::here(cli)?;
    // A digest moves no tag.
    let tag = parsed.digest.is_none().then(|| match &parsed.tag {
        Some(tag) => format!("{}:{tag}", parsed.repository),
        None => format!("{}:latest", parsed.repository),
    });
    if let Some(tag) = &tag {
        names.note(cli, tag)?;
    }
    // Once it is here, the names are settled whoever still waits.
    let fetched = transfer(cli, "pull", reference, options).and_then(|()| cli.inspect_image(reference));
    // Names are what they were while the image is looked at: it might ask for the one that it was pulled by.
    let registry_tag = tag.filter(|_| local.is_none());
    let accepted = fetched.and_then(|image| {
        names.pulled.insert(image.id.clone());
        names.put_back_taken(cli)?;
        accept(cli, reference, &image, &mut names, registry_tag.as_deref(), replaces)
    });
    accepted.map_err(|error| names.put_back(cli, error))
}

/// Gives an image its names, if it may have them. A registry's tag moves on as the registry has it.
fn accept(
    cli: &DockerCli,
    reference: &str,
    image: &InspectedImage,
    names: &mut Names,
    registry_tag: Option<&str>,
    replaces: bool,
) -> Result<ImageInfo> {
    let info = image.udf_image(reference)?;
    check_is_not_built_for_engines(reference, &info.manifest.name)?;
    // The second is the tag that its files have, as after a build.
    let wanted = [Some(info.manifest.image()), image.content_name(&info.manifest)];
    for name in wanted.iter().flatten() {
        names.note(cli, name)?;
    }
    let taken = names.before.iter().find_map(|(name, before)| {
        let before = before.as_ref().filter(|before| **before != image.id && Some(name.as_str()) != registry_tag)?;
        Some((name, before))
    });
    if let Some((name, before)) = taken
        && !replaces
    {
        return Err(Error::new(
            Kind::NotAllowed,
            format!("image \"{reference}\" is called \"{name}\", and another image has that name here"),
        )
        .with_detail(format!("{before} has it, the one that was pulled is {}.", image.id))
        .with_hint("With --replace it takes the name. Functions keep the image that they were created with."));
    }
    for (name, _) in &names.before {
        cli.tag(&image.id, name)?;
    }
    Ok(info)
}

/// What was here before a pull.
struct Names {
    /// The digests of all images.
    images: HashSet<String>,
    /// Names, with the digests of the images that had them.
    before: Vec<(String, Option<String>)>,
    /// The digests of images to which names have moved since.
    pulled: HashSet<String>,
}

impl Names {
    fn here(cli: &DockerCli) -> Result<Names> {
        let mut command = cli.command(["image", "ls", "--all", "--quiet", "--no-trunc"]);
        let listed = run(&mut command, Kind::ContainerFailed, "list images")?;
        Ok(Names {
            images: listed.split_whitespace().map(hex_of).collect(),
            before: Vec::new(),
            pulled: HashSet::new(),
        })
    }

    fn note(&mut self, cli: &DockerCli, name: &str) -> Result<()> {
        let before = cli.find_image(name)?.map(|image| image.id);
        self.before.push((name.to_string(), before));
        Ok(())
    }

    /// Gives names back to the images that had them.
    fn put_back_taken(&mut self, cli: &DockerCli) -> Result<()> {
        for (name, before) in &self.before {
            let Some(before) = before else { continue };
            let now = match cli.find_image(name) {
                Ok(now) => now.map(|now| now.id),
                // What cannot be read at all is not what was there.
                Err(_) => cli.image_id(name).unwrap_or_default(),
            };
            if now.as_ref() != Some(before) {
                cli.tag(before, name)?;
                self.pulled.extend(now);
            }
        }
        Ok(())
    }

    /// Takes names away that nothing had.
    fn remove_new(&self, cli: &DockerCli) -> Result<()> {
        for (name, _) in self.before.iter().filter(|(_, before)| before.is_none()) {
            let is_only_name = |now: &InspectedImage| now.repo_tags.as_ref().is_none_or(|tags| tags.len() <= 1);
            let is_kept = match cli.find_image(name) {
                // Its last name would take an image along that functions may use by its digest.
                Ok(now) => now.is_none_or(|now| self.images.contains(&hex_of(&now.id)) && is_only_name(&now)),
                Err(_) => match cli.image_id(name) {
                    Ok(now) => now.is_none_or(|now| self.images.contains(&hex_of(&now))),
                    // The list says what has the name, also where that cannot be read, and no function can use it.
                    Err(_) => {
                        let ids = ids_named(cli, name)?;
                        ids.is_empty() || ids.iter().any(|id| self.images.contains(&hex_of(id)))
                    }
                },
            };
            if !is_kept {
                remove(cli, name)?;
            }
        }
        Ok(())
    }

    /// Puts all names back after an error, which it gives back, and removes what was pulled and is new here.
    fn put_back(&mut self, cli: &DockerCli, error: Error) -> Error {
        if let Err(cause) = self.put_back_taken(cli).and_then(|()| self.remove_new(cli)) {
            let detail = format!("{}\nIts names could not be put back: {cause}", error.detail().unwrap_or_default());
            return error.with_detail(detail.trim_start());
        }
        for id in self.pulled.iter().filter(|id| !self.images.contains(&hex_of(id))) {
            // With its last name it went already.
            let _ = remove(cli, id);
        }
        error
    }
}

/// The images that the list shows under a name.
fn ids_named(cli: &DockerCli, name: &str) -> Result<Vec<String>> {
    let filter = format!("reference={name}");
    let mut command = cli.command(["image", "ls", "--quiet", "--no-trunc", "--filter", &filter]);
    let text = run(&mut command, Kind::ContainerFailed, "list images")?;
    Ok(text.split_whitespace().map(str::to_string).collect())
}

fn remove(cli: &DockerCli, image: &str) -> Result<()> {
    let what = format!("remove image \"{image}\"");
    run(&mut cli.command(["image", "rm", image]), Kind::ContainerFailed, &what).map(drop)
}

/// A digest as both docker and podman write it.
fn hex_of(digest: &str) -> String {
    digest.trim_start_matches("sha256:").to_string()
}

/// What engines have built is run by its name alone, which says what it was built of.
fn check_is_not_built_for_engines(reference: &str, name: &str) -> Result<()> {
    if !is_built_for_engines(name) {
        return Ok(());
    }
    let message = format!("image \"{reference}\" is called \"{name}\", and such images are only built here");
    Err(Error::new(Kind::NotAllowed, message)
        .with_hint("Inline code and libraries are built again where they are used."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_build_is_not_pulled() {
        for (name, is_refused) in
            [("transship-inline", true), ("transship-library/a", true), ("transship-library", false), ("inline", false)]
        {
            assert_eq!(check_is_not_built_for_engines("r", name).is_err(), is_refused, "{name}");
        }
    }
}
