//! Who may have which image called: the setting `transship.allowed_images`, when functions are created and when they are called.

use pgrx::pg_sys;
use udf_protocol::control::ImageInfo;
use udf_protocol::manifest::FunctionBody;
use udf_protocol::{Error, Kind, Result, allow_list};

use crate::host::Backend;
use crate::pg::{catalog, configuration};
use crate::settings::{self, ALLOWED_IMAGES_NAME, AllowedImagesCheck};
use crate::{server, session};

/// Whether those who are not superusers may create a function with such a body: with an image that
/// `transship.allowed_images` lets through, or with a server that they may use.
pub fn check_create(body: &FunctionBody) -> Result<()> {
    if body.endpoint.is_some() {
        let message = "only superusers may name an endpoint in a container function";
        return Err(Error::new(Kind::NotAllowed, message).with_hint(
            "Name a server with the key \"server\"; CREATE SERVER ... FOREIGN DATA WRAPPER transship makes one.",
        ));
    }
    if let Some(name) = &body.server {
        return server::target(name, catalog::current_user()).map(|_| ());
    }
    let image = name_of(body);
    let patterns = settings::allowed_images();
    if allow_list::allows(&patterns, &image, body.digest.as_deref()) {
        return Ok(());
    }
    // A digest that the name stands for now says nothing new.
    if let (Some(name), Some(digest)) = (&body.image, &body.digest)
        && allow_list::allows(&patterns, &image, None)
    {
        let client = session::client();
        let found = client.resolve_image(&Backend, &settings::manager_socket(), name, settings::start_timeout())?;
        if found.digest == *digest {
            return Ok(());
        }
    }
    Err(refusal(&image))
}

/// Whether the image of a function may still be called: whether its owner, if that is no superuser, could name it now. The
/// digest is what the name stood for when the function was created, which was checked then.
pub fn check_call(function: &str, owner: pg_sys::Oid, body: &FunctionBody, digest: &str) -> Result<()> {
    if settings::allowed_images_check() == AllowedImagesCheck::Create || configuration::is_superuser(owner) {
        return Ok(());
    }
    let image = name_of(body);
    let patterns = list_of(owner);
    if allows(&patterns, &image, digest) {
        return Ok(());
    }
    let owner = catalog::role_name(owner);
    Err(Error::new(Kind::NotAllowed, format!("image \"{image}\" of function \"{function}\" is no longer allowed"))
        .with_detail(format!("The function's owner \"{owner}\" is no superuser, and transship.allowed_images of that role does not list the image."))
        .with_hint(format!("A superuser lists it with ALTER ROLE \"{owner}\" SET transship.allowed_images = ...; with transship.check_allowed_images = 'create' calls are not checked.")))
}

/// Whether the current user may ask about an image: they could name it in a function.
pub fn check_question(asked: &str, image: &ImageInfo) -> Result<()> {
    let patterns = settings::allowed_images();
    // A digest has no name but the one that the image gives itself.
    let name = match asked.starts_with("sha256:") {
        true => format!("{}:{}", image.manifest.name, image.manifest.version),
        false => asked.to_string(),
    };
    if configuration::is_superuser(catalog::current_user()) || allows(&patterns, &name, &image.digest) {
        return Ok(());
    }
    Err(refusal(asked))
}

/// Whether a list lets an image through whose digest nobody has chosen: it is what the name stands for, or stood for when that
/// was checked.
fn allows(patterns: &str, image: &str, digest: &str) -> bool {
    [None, Some(digest)].into_iter().any(|digest| allow_list::allows(patterns, image, digest))
}

fn refusal(image: &str) -> Error {
    Error::new(Kind::NotAllowed, format!("image \"{image}\" is not allowed")).with_hint(
        "A superuser lists the images that others may name in transship.allowed_images, for example with ALTER ROLE ... SET.",
    )
}

/// The name by which a list knows the image of a function.
fn name_of(body: &FunctionBody) -> String {
    body.image.clone().unwrap_or_else(|| format!("inline:{}", body.template.as_deref().unwrap_or_default()))
}

/// The list that a role has in its own new sessions, whatever this session's is.
fn list_of(role: pg_sys::Oid) -> String {
    if let Some(list) = configuration::of_role(ALLOWED_IMAGES_NAME, role) {
        return list;
    }
    // The server's list. It is what this session began with, unless who logged in has another; a parallel worker may not
    // know what its session began with.
    let is_special = configuration::names_role(ALLOWED_IMAGES_NAME, configuration::authenticated_user());
    let own = configuration::after_reset(ALLOWED_IMAGES_NAME).filter(|list| !is_special && !list.is_empty());
    own.or_else(|| configuration::of_files(ALLOWED_IMAGES_NAME)).unwrap_or_default()
}
