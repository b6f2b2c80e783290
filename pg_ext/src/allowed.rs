//! Who may have which image called: the setting `transship.allowed_images`, when functions are created and when they are called.

use std::cell::OnceCell;

use pgrx::pg_sys;
use udf_client::control::ImageInfo;
use udf_project::allow_list;
use udf_project::body::FunctionBody;
use udf_types::{Error, Kind, Result};

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
    let (image, patterns) = (name_of(body), settings::allowed_images());
    let (name, own) = allow_list::split(&image);
    let Some(digest) = body.digest.as_deref().or(own) else {
        return if allow_list::allows(&patterns, name, None) { Ok(()) } else { Err(refusal(&image)) };
    };
    if allow_list::spells(&patterns, name, digest) {
        return Ok(());
    }
    if !allow_list::may_allow(&patterns, &image) {
        return Err(refusal(&image));
    }
    let wanted = body.digest.as_deref().unwrap_or(&image);
    let refusal = refusal(&image).with_detail(OTHER_DIGEST);
    let found = resolve_or(wanted, &refusal)?;
    let name = listed_name(name, &found)?;
    let is_allowed = name.is_some_and(|name| allow_list::allows_found(&patterns, &name, &found.digest));
    if is_allowed { Ok(()) } else { Err(refusal) }
}

/// Whether a list may let the image of a function through that is to be called, as far as its name says: nothing is built or
/// looked for where calls are refused anyway.
pub fn check_name(function: &str, owner: pg_sys::Oid, body: &FunctionBody) -> Result<()> {
    match list_for_calls(owner) {
        Some(list) if !allow_list::may_allow(&list, &name_of(body)) => Err(refusal_of_call(function, owner, body)),
        _ => Ok(()),
    }
}

/// Whether the image of a function may still be called: whether its owner, if that is no superuser, could name it now.
/// `listed` remembers the name by which lists know the digest, if that is what the body says.
pub fn check_call(
    function: &str,
    owner: pg_sys::Oid,
    body: &FunctionBody,
    digest: &str,
    listed: &OnceCell<Option<String>>,
) -> Result<()> {
    let Some(patterns) = list_for_calls(owner) else { return Ok(()) };
    let image = name_of(body);
    let (name, own) = allow_list::split(&image);
    if allow_list::spells(&patterns, name, digest) {
        return Ok(());
    }
    if !allow_list::may_allow(&patterns, &image) {
        return Err(refusal_of_call(function, owner, body));
    }
    let known = match listed.get() {
        Some(known) => known,
        None => {
            // Whoever wrote the body may have chosen its digest.
            let is_chosen = body.digest.is_some() || own.is_some();
            let found = if is_chosen { listed_name(name, &resolve(digest)?)? } else { Some(name.to_string()) };
            listed.get_or_init(|| found)
        }
    };
    match known {
        Some(name) if allow_list::allows_found(&patterns, name, digest) => Ok(()),
        Some(_) => Err(refusal_of_call(function, owner, body)),
        None => Err(refusal_of_call(function, owner, body)
            .with_detail(OTHER_DIGEST)
            .with_hint("Create the function again without the digest, or have a superuser list the digest.")),
    }
}

/// The list that calls are checked with; none where they are not.
fn list_for_calls(owner: pg_sys::Oid) -> Option<String> {
    let is_checked =
        settings::allowed_images_check() == AllowedImagesCheck::Call && !configuration::is_superuser(owner);
    is_checked.then(|| list_of(owner))
}

/// What the manager says of an image, if the current user may ask about it: they could name it in a function. Who may not, is
/// not told either whether there is such an image.
pub fn ask(image: &str) -> Result<ImageInfo> {
    if configuration::is_superuser(catalog::current_user()) {
        return resolve(image);
    }
    let patterns = settings::allowed_images();
    let (name, digest) = allow_list::split(image);
    let is_sure = match digest {
        Some(digest) => allow_list::spells(&patterns, name, digest),
        None => allow_list::allows(&patterns, name, None),
    };
    if is_sure {
        return resolve(image);
    }
    if !allow_list::may_allow(&patterns, image) {
        return Err(refusal(image));
    }
    let refusal = refusal(image);
    let found = resolve_or(image, &refusal)?;
    // A digest has no name but the one that the image gives itself.
    let name = if digest.is_some() { found.manifest.listed_name() } else { name.to_string() };
    if allow_list::allows_found(&patterns, &name, &found.digest) { Ok(found) } else { Err(refusal) }
}

/// Asks the manager, which may cost a process of the container engine.
fn resolve(image: &str) -> Result<ImageInfo> {
    session::client().resolve_image(&Backend, &settings::manager_socket(), image, settings::start_timeout())
}

/// As [`resolve`], for somebody who may not be told whether there is such an image.
fn resolve_or(image: &str, refusal: &Error) -> Result<ImageInfo> {
    resolve(image).map_err(|error| match error.kind() {
        Kind::ImageNotFound | Kind::NotAllowed | Kind::InvalidDefinition => refusal.clone(),
        _ => error,
    })
}

/// The name by which lists know an image whose digest somebody has chosen, and called `name`.
fn listed_name(name: &str, image: &ImageInfo) -> Result<Option<String>> {
    session::client().listed_name(&Backend, &settings::manager_socket(), name, image, settings::start_timeout())
}

/// The detail where only the name is listed.
const OTHER_DIGEST: &str = "The digest in the function body must be that of an image that has, or had, this name.";

fn refusal(image: &str) -> Error {
    Error::new(Kind::NotAllowed, format!("image \"{image}\" is not allowed")).with_hint(
        "A superuser lists the images that others may name in transship.allowed_images, for example with ALTER ROLE ... SET.",
    )
}

fn refusal_of_call(function: &str, owner: pg_sys::Oid, body: &FunctionBody) -> Error {
    let (image, owner) = (name_of(body), catalog::role_name(owner));
    Error::new(Kind::NotAllowed, format!("image \"{image}\" of function \"{function}\" is no longer allowed"))
        .with_detail(format!("The function's owner \"{owner}\" is no superuser, and transship.allowed_images of that role does not list the image."))
        .with_hint(format!("A superuser lists it with ALTER ROLE \"{owner}\" SET transship.allowed_images = ...; with transship.check_allowed_images = 'create' calls are not checked."))
}

/// The name by which a list knows the image of a function.
fn name_of(body: &FunctionBody) -> String {
    body.image.clone().unwrap_or_else(|| format!("inline:{}", body.template.as_deref().unwrap_or_default()))
}

/// The list that a role has in its own new sessions, whatever this session's is.
fn list_of(role: pg_sys::Oid) -> String {
    let own = configuration::of_role(ALLOWED_IMAGES_NAME, role);
    own.or_else(|| configuration::of_server(ALLOWED_IMAGES_NAME)).unwrap_or_default()
}
