//! The caller's login at a registry, as `docker login` or `podman login` has left it: in a file, or with a program that keeps
//! it (a credential helper).

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use udf_client::registry_login::RegistryLogin;
use udf_types::{Error, Kind, Result};

use crate::registry_name::keys_of;

/// What a helper gives for a user if the secret is a token.
const TOKEN_USER: &str = "<token>";
/// What a helper says if it has no login.
const NOT_FOUND: &str = "credentials not found";

/// A file of logins, as docker and podman write it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Logins {
    auths: HashMap<String, Entry>,
    creds_store: String,
    cred_helpers: HashMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    /// `user:password`, in base64.
    auth: String,
    #[serde(rename = "identitytoken")]
    identity_token: String,
}

/// What a helper gives.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Kept {
    username: String,
    secret: String,
}

/// The login at the registry of a reference; none if there is none.
pub fn find(reference: &str) -> Result<Option<RegistryLogin>> {
    let keys = keys_of(reference);
    for path in files_of_logins() {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(unreadable(&path, &cause)),
        };
        if let Some(login) = find_in(&path, &text, &keys)? {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

/// Docker's, then podman's.
fn files_of_logins() -> Vec<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let docker = folder("DOCKER_CONFIG").or_else(|| Some(folder("HOME")?.join(".docker")));
    let podman =
        folder("REGISTRY_AUTH_FILE").or_else(|| Some(folder("XDG_RUNTIME_DIR")?.join("containers").join("auth.json")));
    docker.map(|folder| folder.join("config.json")).into_iter().chain(podman).collect()
}

fn find_in(path: &Path, text: &str, keys: &[String]) -> Result<Option<RegistryLogin>> {
    // The text has secrets, and the reason may quote it.
    let logins: Logins = serde_json::from_str(text).map_err(|_| unreadable(path, &"it is not what docker writes"))?;
    for key in keys {
        let helper = logins.cred_helpers.get(key).unwrap_or(&logins.creds_store);
        if !helper.is_empty()
            && let Some(login) = ask_helper(helper, key)?
        {
            return Ok(Some(login));
        }
    }
    let entry = logins.auths.iter().find(|(key, _)| keys.iter().any(|wanted| names_host(key, wanted)));
    let Some((_, entry)) = entry else { return Ok(None) };
    let decoded = BASE64.decode(&entry.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let (user, password) = decoded.as_deref().and_then(|text| text.split_once(':')).unwrap_or_default();
    if !entry.identity_token.is_empty() {
        let (user, secret) = (user.to_string(), entry.identity_token.clone());
        return Ok(Some(RegistryLogin { user, secret, is_token: true }));
    }
    let login =
        RegistryLogin { user: user.to_string(), secret: password.trim_end_matches('\0').to_string(), is_token: false };
    Ok(Some(login).filter(|login| !login.user.is_empty()))
}

/// Whether an entry is of a registry. Older versions wrote `https://host/v1/`.
fn names_host(key: &str, wanted: &str) -> bool {
    let host = |text: &str| {
        let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text).to_string();
        text.split('/').next().unwrap_or_default().to_string()
    };
    key == wanted || host(key) == host(wanted)
}

/// Asks the program `docker-credential-HELPER` (github.com/docker/docker-credential-helpers), as the caller.
fn ask_helper(helper: &str, key: &str) -> Result<Option<RegistryLogin>> {
    let name = format!("docker-credential-{helper}");
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidDefinition, format!("could not ask \"{name}\" for the login at \"{key}\": {cause}"))
    };
    let mut command = Command::new(&name);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|cause| failed(&cause))?;
    // One that does not read it says why.
    let _ = child.stdin.take().expect("it is piped").write_all(key.as_bytes());
    let output = child.wait_with_output().map_err(|cause| failed(&cause))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        return if said.contains(NOT_FOUND) { Ok(None) } else { Err(failed(&format!("{}: {said}", output.status))) };
    }
    let kept: Kept = serde_json::from_slice(&output.stdout).map_err(|_| failed(&"it gave no login"))?;
    let is_token = kept.username == TOKEN_USER;
    let user = if is_token { String::new() } else { kept.username };
    Ok(Some(RegistryLogin { user, secret: kept.secret, is_token }).filter(|login| !login.secret.is_empty()))
}

fn unreadable(path: &Path, cause: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::InvalidDefinition, format!("could not read the logins in \"{}\": {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_for(text: &str, reference: &str) -> Result<Option<RegistryLogin>> {
        find_in(Path::new("/config.json"), text, &keys_of(reference))
    }

    #[test]
    fn a_login_is_the_one_of_the_registry() {
        let auth = |text: &str| BASE64.encode(text);
        let text = format!(
            r#"{{"auths": {{"r.example": {{"auth": "{}"}}, "https://index.docker.io/v1/": {{"auth": "{}", "identitytoken": "t"}},
               "https://old.example/v1/": {{"auth": "{}"}}, "empty.example": {{}}}}, "currentContext": "x", "HttpHeaders": {{}}}}"#,
            auth("me:pass:word"),
            auth("me:"),
            auth("you:w"),
        );
        let login = |user: &str, secret: &str, is_token| {
            Some(RegistryLogin { user: user.to_string(), secret: secret.to_string(), is_token })
        };
        for (reference, expected) in [
            ("r.example/a:1", login("me", "pass:word", false)),
            ("team/a", login("me", "t", true)),
            ("old.example/a", login("you", "w", false)),
            ("empty.example/a", None),
            ("r.example:5000/a", None),
            ("other.example/a", None),
        ] {
            assert_eq!(find_for(&text, reference).unwrap(), expected, "{reference}");
        }
        assert_eq!(find_for("{}", "r.example/a").unwrap(), None);
        // The reason quotes nothing of the file.
        let error = find_for(r#"{"auths": {"r.example": "c2VjcmV0"}}"#, "r.example/a").unwrap_err();
        assert!(!error.to_string().contains("c2VjcmV0"), "{error}");
    }

    #[test]
    fn a_helper_that_is_missing_is_an_error() {
        let error = find_for(r#"{"credsStore": "transship-none"}"#, "r.example/a").unwrap_err();
        assert!(error.message().contains("docker-credential-transship-none"), "{error}");
        assert_eq!(find_for(r#"{"credHelpers": {"r.example": "transship-none"}}"#, "other.example/a").unwrap(), None);
    }
}
