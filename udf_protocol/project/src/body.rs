//! The body of a function (`LANGUAGE container`, `@script`): the second TOML text that a user writes, beside the manifest. Keys, defaults
//! and bounds are defined here once; unknown keys are refused.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use udf_types::signature::FunctionKind;
use udf_types::transport_name::TransportName;
use udf_types::{Advice, Error, Result};

use crate::dialect::Dialect;
use crate::keys::{
    bad_value, check_bounds, check_concurrency, check_length, check_option, is_template_name, malformed,
};
use crate::manifest::{
    BatchForm, FunctionEntry, INLINE_REPOSITORY, Limits, Manifest, default_concurrency, default_handler,
    default_replicas, default_version,
};
use crate::options;
use crate::reference::{ImageReference, is_digest};
use crate::remote::Remote;

/// Pairs of a function body that may stand on the line of another. There are fewer keys.
const MAX_SHARED_LINES: usize = 100;
/// Most shared tables of a function, and most bytes of such a name: two identifiers of PostgreSQL's, all of them quoted.
const MAX_TABLES: usize = 64;
const MAX_TABLE_NAME_BYTES: usize = 512;

/// The body of a function: which container answers it, and how it is called.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionBody {
    /// The image's digest at the time when the function was created; written by the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The digest that was called before; written by the engine, for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The image, `name:tag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A server that runs already, instead of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// What the server at the endpoint speaks, if it is not this protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// A server that runs already, as the engine knows it by name, with its credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Inline code: its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Inline code: its packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    /// Inline code: its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Inline code: how the handler takes its arguments.
    #[serde(default)]
    pub batch: BatchForm,
    /// Inline code: most calls of a batch that are under way at a time, of a handler that waits; 1 to 1,000, and 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The function's name in the container, if it is not the SQL name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// What the function makes of its calls, where its declaration in SQL does not say it: only `"map"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FunctionKind>,
    /// How batches travel; the engine's setting if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportName>,
    /// Longest wait for the answer to one batch, in milliseconds; 1 to 86,400,000; the engine's setting if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Most rows per batch; 1 to 1,000,000; the engine's setting if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch_rows: Option<usize>,
    /// Rows of a query's first batch, which has no fewer unless fewer are wanted; 1 to 1,000,000; few if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_batch_rows: Option<usize>,
    /// What becomes of a row on which the handler raises an error.
    #[serde(default)]
    pub on_error: OnError,
    /// Whether results are kept, and equal rows are not called again; for functions whose results depend on their arguments alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache: bool,
    /// For how long results are kept at most, in seconds; 1 to 31,536,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_ttl: Option<u64>,
    /// Shared tables that the handler reads, by the names that it has for them; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
}

/// What becomes of a row on which the handler raises an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The query fails.
    #[default]
    Fail,
    /// Its result is NULL.
    Null,
    /// Its result says the error: the declared type is `(value T, error text)`.
    Report,
}

/// Whether a text in it has zeros.
fn has_zeros(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => text.contains('\0'),
        toml::Value::Array(values) => values.iter().any(has_zeros),
        toml::Value::Table(members) => members.iter().any(|(key, value)| key.contains('\0') || has_zeros(value)),
        _ => false,
    }
}

impl FunctionBody {
    /// Reads and checks a function body.
    pub fn parse(text: &str) -> Result<FunctionBody> {
        FunctionBody::from_table(FunctionBody::read_table(text)?)
    }

    /// Reads the text's keys. Pairs may share a line, as SQL is often written: `image = "a:1" function = "b"`.
    pub fn read_table(text: &str) -> Result<toml::Table> {
        check_length("the function body", text.len())?;
        let first = match toml::from_str(text) {
            Ok(table) => return Ok(table),
            Err(cause) => cause,
        };
        let mut broken = text.to_string();
        let mut cause = first.clone();
        // A new line goes where a value ends and TOML wants one; that place moves on each time. All of the text is read again
        // then, so it cannot be done for any number of pairs.
        let mut last_break = 0;
        for _ in 0..MAX_SHARED_LINES {
            let Some(end) = end_of_value(&broken, &cause).filter(|end| *end > last_break) else { break };
            broken.insert(end, '\n');
            last_break = end + 1;
            cause = match toml::from_str(&broken) {
                Ok(table) => return Ok(table),
                Err(cause) => cause,
            };
        }
        Err(malformed("the function body", &first))
    }

    /// Checks what the keys say.
    pub fn from_table(table: toml::Table) -> Result<FunctionBody> {
        if let Some((key, _)) = table.iter().find(|(_, value)| has_zeros(value)) {
            return Err(Error::invalid_definition(format!(
                "the key \"{key}\" has characters U+0000, which no engine can hold"
            )));
        }
        let body: FunctionBody = table.try_into().map_err(|cause| malformed("the function body", &cause))?;
        let places = [body.image.is_some(), body.endpoint.is_some(), body.server.is_some(), body.source.is_some()];
        if places.iter().filter(|given| **given).count() != 1 {
            return Err(Error::invalid_definition(
                "a container function needs exactly one of the keys \"image\", \"source\", \"server\" and \"endpoint\"",
            )
            .with_hint("Write image = \"name:tag\", or template = \"python\" with source = '''...'''."));
        }
        if body.source.is_some() != body.template.is_some() {
            return Err(Error::invalid_definition("the keys \"template\" and \"source\" go together"));
        }
        if let Some(template) = body.template.as_ref().filter(|template| !is_template_name(template)) {
            return Err(bad_value("template", template, "the name of a folder of container_templates"));
        }
        if !body.requirements.is_empty() && body.source.is_none() {
            return Err(Error::invalid_definition("the key \"requirements\" needs the key \"source\""));
        }
        if body.concurrency.is_some() && body.source.is_none() {
            return Err(Error::invalid_definition("the key \"concurrency\" needs the key \"source\""));
        }
        if body.kind.is_some_and(|kind| kind != FunctionKind::Map) {
            return Err(Error::invalid_definition("the key \"kind\" of a function body can only be \"map\""));
        }
        if body.dialect.is_some() && body.endpoint.is_none() {
            return Err(Error::invalid_definition("the key \"dialect\" needs the key \"endpoint\"")
                .with_advice(Advice::ServerDialect));
        }
        body.remote()?;
        body.image.as_deref().map(ImageReference::parse).transpose()?;
        for (key, digest) in [("digest", &body.digest), ("previous", &body.previous)] {
            let Some(digest) = digest else { continue };
            if !is_digest(digest) {
                return Err(bad_value(key, digest, "sha256: and 64 hexadecimal digits"));
            }
        }
        if let Some(timeout_ms) = body.timeout_ms {
            check_option("timeout_ms", timeout_ms, options::BATCH_TIMEOUT_MS)?;
        }
        if let Some(concurrency) = body.concurrency {
            check_concurrency(concurrency)?;
        }
        for (key, rows) in [("max_batch_rows", body.max_batch_rows), ("first_batch_rows", body.first_batch_rows)] {
            if let Some(rows) = rows {
                check_option(key, rows as u64, options::BATCH_ROWS)?;
            }
        }
        if let Some(seconds) = body.cache_ttl {
            check_bounds("cache_ttl", seconds as f64, 1.0, 31_536_000.0)?;
            if !body.cache {
                return Err(Error::invalid_definition("the key \"cache_ttl\" needs the key \"cache\""));
            }
        }
        if body.cache && body.cache_ttl.is_none() && (body.endpoint.is_some() || body.server.is_some()) {
            return Err(Error::invalid_definition(
                "the key \"cache\" of a function of a server needs the key \"cache_ttl\"",
            )
            .with_detail("Nothing says when such a server begins to give other results."));
        }
        body.check_tables()?;
        Ok(body)
    }

    /// Rows of the largest batch and of the first one, where it says so.
    pub fn batch_rows(&self) -> [Option<usize>; 2] {
        [self.max_batch_rows, self.first_batch_rows]
    }

    fn check_tables(&self) -> Result<()> {
        if !self.tables.is_empty() && (self.endpoint.is_some() || self.server.is_some()) {
            return Err(Error::invalid_definition("the key \"tables\" needs the key \"image\" or \"source\"")
                .with_detail("A server that runs elsewhere cannot read the host's memory."));
        }
        if self.tables.len() > MAX_TABLES {
            return Err(Error::invalid_definition(format!("the key \"tables\" names more than {MAX_TABLES} tables")));
        }
        for (position, name) in self.tables.iter().enumerate() {
            if name.is_empty() || name.len() > MAX_TABLE_NAME_BYTES || name.contains('\0') {
                return Err(bad_value("tables", name, "names of shared tables"));
            }
            if self.tables[..position].contains(name) {
                return Err(Error::invalid_definition(format!("the key \"tables\" names \"{name}\" twice")));
            }
        }
        Ok(())
    }

    /// The server at the endpoint, if the body names one.
    pub fn remote(&self) -> Result<Option<Remote>> {
        let dialect = self.dialect.unwrap_or_default();
        self.endpoint.as_deref().map(|endpoint| Remote::parse(endpoint, dialect)).transpose()
    }

    /// What EXPLAIN and errors call the place that answers.
    pub fn place(&self) -> String {
        let named = [&self.image, &self.endpoint, &self.server].into_iter().flatten().next();
        named.cloned().unwrap_or_else(|| "inline source".to_string())
    }

    /// The body's text with `digest` as its first key: before any table, so that the text stays valid TOML.
    pub fn pin_digest(text: &str, digest: &str) -> String {
        let mut pinned = String::with_capacity(text.len() + digest.len() + 16);
        let _ = write!(pinned, "\ndigest = \"{digest}\"");
        if !text.starts_with('\n') {
            pinned.push('\n');
        }
        pinned.push_str(text);
        pinned
    }

    /// The project that inline code stands for: one function.
    pub fn inline_manifest(&self, function: FunctionEntry) -> Option<Manifest> {
        let (Some(template), Some(_)) = (&self.template, &self.source) else {
            return None;
        };
        Some(Manifest {
            name: INLINE_REPOSITORY.to_string(),
            version: default_version(),
            template: template.clone(),
            handler: default_handler(),
            requirements: self.requirements.clone(),
            system_packages: Vec::new(),
            files: Vec::new(),
            functions: vec![FunctionEntry {
                batch: self.batch,
                concurrency: self.concurrency.unwrap_or_else(default_concurrency),
                ..function
            }],
            limits: Limits::default(),
            replicas: default_replicas(),
            prewarm: 0,
            pause: false,
        })
    }
}

/// Where another pair may start on the line of a pair, if that is what `cause` is about.
fn end_of_value(text: &str, cause: &toml::de::Error) -> Option<usize> {
    let end = cause.span().filter(|_| cause.message().contains("expected newline"))?.start;
    let (before, after) = text.split_at_checked(end)?;
    if !after.starts_with('=') {
        return Some(end);
    }
    // A number takes the next key for a part of itself.
    let key = before.trim_end().trim_end_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    Some(key.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_rows_end_the_query_unless_the_body_says_otherwise() {
        let parse = |keys: &str| FunctionBody::parse(&format!("image = 'a:1'\n{keys}")).map(|body| body.on_error);
        assert_eq!(parse(""), Ok(OnError::Fail));
        let known = [("fail", OnError::Fail), ("null", OnError::Null), ("report", OnError::Report)];
        for (name, on_error) in known {
            assert_eq!(parse(&format!("on_error = '{name}'")), Ok(on_error));
        }
        for wrong in ["'ignore'", "'Null'", "''", "true"] {
            let error = parse(&format!("on_error = {wrong}")).unwrap_err();
            assert!(error.to_string().contains("on_error") || error.to_string().contains("report"), "{wrong}: {error}");
        }
    }

    #[test]
    fn texts_have_no_zeros() {
        for text in [
            "image = 'a:1' function = \"\\u0000\"",
            "template = 'python' source = \"x\\u0000\"",
            "\"\\u0000\" = 1",
            "template = 'python' source = 'x' requirements = [\"a\\u0000\"]",
        ] {
            let error = FunctionBody::parse(text).unwrap_err();
            assert_eq!(error.kind(), udf_types::Kind::InvalidDefinition, "{text}");
        }
    }

    #[test]
    fn tables_are_named_once_and_only_for_containers_of_this_host() {
        let parse = |text: &str| FunctionBody::parse(text).map(|body| body.tables);
        assert_eq!(parse("image = 'a:1'"), Ok(Vec::new()));
        assert_eq!(parse("image = 'a:1' tables = ['t', 's.\"T\"']").unwrap(), ["t", "s.\"T\""]);
        assert_eq!(parse("template = 'python' source = 'x' tables = ['t']").unwrap(), ["t"]);
        for wrong in ["['t', 't']", "['']", "['a\\u0000']", "'t'", "[1]"] {
            let error =
                parse(&format!("image = 'a:1' tables = {}", wrong.replace("'a\\u0000'", "\"a\\u0000\""))).unwrap_err();
            assert!(error.to_string().contains("tables"), "{wrong}: {error}");
        }
        let many: Vec<_> = (0..=MAX_TABLES).map(|i| format!("'t{i}'")).collect();
        assert!(parse(&format!("image = 'a:1' tables = [{}]", many.join(","))).is_err());
        assert!(parse("endpoint = 'grpc://a:1' tables = ['t']").unwrap_err().detail().unwrap().contains("memory"));
        assert!(parse("server = 's' tables = ['t']").is_err());
    }

    #[test]
    fn a_template_is_a_name_and_no_path() {
        let parse = |template: &str| FunctionBody::parse(&format!("template = '{template}'\nsource = 'x'"));
        assert!(parse("python").is_ok());
        for template in ["", "../x", "/tmp/x", "python/..", "a b"] {
            assert!(parse(template).is_err(), "{template:?}");
        }
    }

    #[test]
    fn inline_code_says_how_many_calls_are_under_way() {
        let manifest_of = |keys: &str| {
            let body = FunctionBody::parse(&format!("template = 'python'\nsource = 'x'\n{keys}"))?;
            Ok::<_, Error>(body.inline_manifest(FunctionEntry::named("f")).unwrap())
        };
        // A manifest as it was before the key, whose label must not change.
        assert!(!manifest_of("").unwrap().to_label().contains("concurrency"));
        let manifest = manifest_of("concurrency = 8").unwrap();
        assert_eq!(manifest.functions[0].concurrency, 8);
        assert_eq!(Manifest::from_label(&manifest.to_label()).unwrap(), manifest);
        assert!(manifest_of("concurrency = 0").is_err() && manifest_of("concurrency = 1001").is_err());
        assert!(FunctionBody::parse("image = 'a:1' concurrency = 2").unwrap_err().message().contains("source"));
    }

    #[test]
    fn body_names_one_place() {
        assert_eq!(FunctionBody::parse("image = \"a:1\"").unwrap().place(), "a:1");
        assert!(FunctionBody::parse("").is_err());
        assert!(FunctionBody::parse("image = \"a\"\nendpoint = \"grpc://h:1\"").is_err());
        assert!(FunctionBody::parse("source = 'x'").is_err());
        assert!(FunctionBody::parse("image = \"a\"\ntimeout_ms = 0").is_err());
        for key in ["max_batch_rows", "first_batch_rows"] {
            let error = FunctionBody::parse(&format!("image = 'a' {key} = 1000001")).unwrap_err();
            assert!(error.message().contains(key), "{error}");
        }
        assert!(FunctionBody::parse("image = \"a\"\nimagee = \"b\"").unwrap_err().message().contains("imagee"));
    }

    #[test]
    fn pairs_may_share_a_line() {
        let body = FunctionBody::parse(
            "image = 'i' function = 'ü' max_batch_rows = 7 first_batch_rows = 3 timeout_ms = 5\ttransport = \"json\" # x = 1",
        )
        .unwrap();
        assert_eq!(
            (body.max_batch_rows, body.first_batch_rows, body.timeout_ms, body.transport),
            (Some(7), Some(3), Some(5), Some(TransportName::Json))
        );
        for text in ["image = a b", "image = 'a' 'b'", "image = 'a' b", "image = 'a' max_batch_rows = 1 000", "= ="] {
            assert!(FunctionBody::parse(text).unwrap_err().message().contains("not valid"), "{text}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_with_its_key() {
        let error = FunctionBody::parse("image = 5").unwrap_err();
        assert_eq!(error.detail(), Some("The error is in the value of key \"image\"."), "{error}");
    }

    #[test]
    fn pinned_body_is_still_the_same_body() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for text in ["image = \"a:1\"", "\nimage = \"a:1\"\n"] {
            let pinned = FunctionBody::parse(&FunctionBody::pin_digest(text, &digest)).unwrap();
            assert_eq!(pinned.digest.as_deref(), Some(digest.as_str()));
            assert_eq!(pinned.image.as_deref(), Some("a:1"));
        }
    }
}
