//! What a script calls: its signature, as the image or the server declares it.

use std::time::Duration;

use udf_client::cache::{CacheUse, socket_beside};
use udf_client::client::Client;
use udf_client::control::ImageInfo;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_project::allow_list;
use udf_project::manifest::FunctionEntry;
use udf_project::options;
use udf_types::signature::{Signature, Volatility};
use udf_types::{Advice, Error, Kind, Result};

use crate::library;
use crate::process::Process;
use crate::script::Script;

/// A function that can be called.
#[derive(Debug)]
pub struct Function {
    /// What is called.
    pub signature: Signature,
    /// Whether a NULL argument makes the result NULL without a call.
    pub is_strict: bool,
    /// Whose it is, for messages: `image "flights:1.0"`.
    pub place: String,
    /// Rows of the largest batch and of the first one, where the script says so.
    pub batch_rows: [Option<usize>; 2],
    /// How its results are kept, if they are.
    pub cache: Option<CacheUse>,
    volatility: Volatility,
    target: Target,
}

/// Finds the function that a script names.
pub fn find(process: &Process, client: &Client, script: &Script) -> Result<Function> {
    check_allowed(process, script)?;
    find_unadvised(process, client, script).map_err(add_advice)
}

fn find_unadvised(process: &Process, client: &Client, script: &Script) -> Result<Function> {
    let settings = &process.settings;
    let body = &script.body;
    let batch_rows = body.batch_rows();
    if let Some(remote) = body.remote()? {
        let transport = body.transport.unwrap_or(settings.transport);
        let place = format!("the server at \"{remote}\"");
        let name = body
            .function
            .as_deref()
            .ok_or_else(|| Error::invalid_definition("a script with an endpoint needs the key \"function\""))?;
        let has_signatures = remote.dialect().has_signatures();
        let target = Target::Remote { remote, credentials: Credentials::default() };
        let signature = if has_signatures {
            client.signature(&PlainHost, &target, transport, name, settings.start_timeout)?
        } else {
            let declared = FunctionEntry { name: name.to_string(), ..script.inline_entry() }.signature()?;
            declared.ok_or_else(|| {
                Error::signature_not_said(name, &place)
                    .with_hint("Give it with the keys \"arguments\" and \"returns\" in the script.")
            })?
        };
        return Ok(Function {
            signature,
            is_strict: !has_signatures && script.keys.strict,
            place,
            batch_rows,
            cache: cache_use(process, script, Volatility::Volatile)?,
            volatility: Volatility::Volatile,
            target,
        });
    }
    let image = find_image(process, client, script)?;
    check_name(process, client, script, &image)?;
    let place = if body.source.is_some() {
        "the inline source".to_string()
    } else {
        format!("image \"{}\"", script.places().join(","))
    };
    let entry = image.manifest.function(body.function.as_deref(), &place)?;
    let signature = entry.signature()?.ok_or_else(|| Error::signature_not_said(&entry.name, &place))?;
    let target = Target::Image { manager: settings.socket.clone(), digest: image.digest.clone() };
    let (is_strict, volatility) = (entry.strict, entry.volatility);
    let cache = cache_use(process, script, volatility)?;
    Ok(Function { signature, is_strict, place, batch_rows, cache, volatility, target })
}

/// How long the store of results is waited for, for one row.
const CACHE_TIMEOUT: Duration = Duration::from_millis(options::CACHE_TIMEOUT_MS.default);

/// How results are kept, if the script wants it.
fn cache_use(process: &Process, script: &Script, volatility: Volatility) -> Result<Option<CacheUse>> {
    if !script.body.cache {
        return Ok(None);
    }
    if volatility != Volatility::Immutable {
        return Err(Error::invalid_definition("the key \"cache\" needs a function that is immutable")
            .with_hint("Write volatility = \"immutable\" in the manifest of its image."));
    }
    let (socket, max_age) = (socket_beside(&process.settings.socket), script.body.cache_ttl.map(Duration::from_secs));
    Ok(Some(CacheUse { socket, max_age, timeout: CACHE_TIMEOUT, is_forced: false }))
}

fn find_image(process: &Process, client: &Client, script: &Script) -> Result<ImageInfo> {
    let settings = &process.settings;
    let mut body = script.body.clone();
    // Where only a digest of inline code is listed, no other code is built in its stead.
    if body.digest.is_some() && check_listed(&settings.allowed, &script.places(), None).is_err() {
        body.source = None;
    }
    let found = client.find_image(
        &PlainHost,
        &settings.socket,
        &body,
        script.inline_entry(),
        settings.start_timeout,
        settings.build_timeout,
    );
    match (found, &script.keys.library) {
        // The manager may be another than the one that built it.
        (Err(error), Some(name)) if error.kind() == Kind::ImageNotFound => library::rebuild(process, client, name),
        (found, _) => found,
    }
}

/// Whether a digest that the script chose is of an image that has, or had, the name beside it: a list may know the name alone.
fn check_name(process: &Process, client: &Client, script: &Script, image: &ImageInfo) -> Result<()> {
    let settings = &process.settings;
    // A library's image comes from its installation.
    if script.keys.library.is_some() {
        return Ok(());
    }
    let places = script.places();
    let [reference] = places.as_slice() else { return Ok(()) };
    let (name, own) = allow_list::split(reference);
    if own.is_none() && script.body.digest.is_none() {
        return Ok(());
    }
    // The image may be another than that of the digest, which was built of the script's source.
    if allow_list::spells(&settings.allowed, reference, &image.digest) {
        return Ok(());
    }
    let known = client.listed_name(&PlainHost, &settings.socket, name, image, settings.start_timeout)?;
    if known.is_some_and(|known| allow_list::allows_found(&settings.allowed, &known, &image.digest)) {
        return Ok(());
    }
    Err(refusal(reference)
        .with_detail("The digest in the script must be that of an image that has, or had, this name."))
}

fn check_allowed(process: &Process, script: &Script) -> Result<()> {
    // A library's image comes from its installation, not from the script.
    let (places, digest) = match &script.keys.library {
        Some(library) => (vec![format!("library:{library}")], None),
        None => (script.places(), script.body.digest.as_deref()),
    };
    check_listed(&process.settings.allowed, &places, digest)
}

/// Whether a script may name all these places.
pub fn check_listed(allowed: &str, places: &[String], digest: Option<&str>) -> Result<()> {
    match places.iter().find(|place| !allow_list::allows(allowed, place, digest)) {
        Some(place) => Err(refusal(place)),
        None => Ok(()),
    }
}

fn refusal(place: &str) -> Error {
    Error::new(Kind::NotAllowed, format!("\"{place}\" is not allowed in this external language")).with_hint(
        "Scripts may name what the setting \"allowed\" of the external language lists, which its owner changes: \
             PARAMETERS = N'allowed=flights:*, inline:python', for example.",
    )
}

/// Says what usually keeps SQL Server's scripts from what they cannot reach.
pub fn add_advice(error: Error) -> Error {
    let hint = match (error.kind(), error.advice()) {
        (Kind::Timeout, _) => "Raise timeout_ms in the script, or the external language's setting batch_timeout_ms.",
        (Kind::Unreachable, _) => UNREACHABLE_HINT,
        (Kind::OutOfMemory, _) => {
            "Raise the external language's setting max_reply_size, or lower batch_rows so that a reply answers fewer rows."
        }
        (_, Some(Advice::BatchRows)) => "Lower the external language's setting batch_rows.",
        (_, Some(Advice::FunctionName)) => "Name one of them with the key \"function\" in the script.",
        (_, Some(Advice::Flight)) => "Set transport = \"flight\" in the script, if its server offers Flight.",
        (_, Some(Advice::ServerDialect)) => "Name the server's address with the key \"endpoint\".",
        (_, Some(Advice::Token | Advice::PlaintextSecrets)) => "Scripts have no secrets for servers.",
        (_, Some(Advice::Manager | Advice::BatchTimeout | Advice::ReplySize) | None) => return error,
    };
    error.with_hint(hint)
}

const UNREACHABLE_HINT: &str = "Scripts of SQL Server see only the folders of extensibility.datadirectories, and no network unless \
         extensibility.outboundnetworkaccess is 1. Check that transshipd runs, that TRANSSHIP_SOCKET names its socket, and \
         that the folder of the socket is listed (docs/sqlserver.md).";

impl Function {
    /// All that an exchange needs to know.
    pub fn call(&self, process: &Process, script: &Script) -> Call {
        let settings = &process.settings;
        Call {
            target: self.target.clone(),
            transport: script.body.transport.unwrap_or(settings.transport),
            signature: self.signature.clone(),
            volatility: self.volatility,
            batch_timeout: script.body.timeout_ms.map_or(settings.batch_timeout, Duration::from_millis),
            start_timeout: settings.start_timeout,
            tables: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn functions_of_servers_without_signatures_are_as_strict_as_the_script_says() {
        let settings = Settings { allowed: "*".to_string(), ..Settings::default() };
        let process = Process { settings, library_folders: Vec::new() };
        let client = Client::start().unwrap();
        for strict in [false, true] {
            let text = format!(
                "endpoint = 'http://127.0.0.1:9'\ndialect = 'snowflake'\nfunction = 'f'\narguments = ['x float8']\n\
                 returns = 'float8'\nstrict = {strict}"
            );
            let script = Script::parse(&text, |_| unreachable!()).unwrap();
            assert_eq!(find(&process, &client, &script).unwrap().is_strict, strict);
        }
        client.stop();
    }
}
