//! `@script`: the TOML of a function body, as in PostgreSQL, and the keys that SQL Server needs because a script declares
//! neither its arguments nor its results.

use serde::Deserialize;
use udf_project::body::{FunctionBody, OnError};
use udf_project::manifest::FunctionEntry;
use udf_types::signature::{FunctionKind, Volatility};
use udf_types::{Error, Result};

use crate::columns::ServerType;

/// What a script says.
#[derive(Debug)]
pub struct Script {
    /// Which container answers, and how it is called.
    pub body: FunctionBody,
    /// What only SQL Server needs.
    pub keys: Keys,
    /// T-SQL types of the result columns; empty if the function's types decide.
    pub result_columns: Vec<ServerType>,
}

/// The keys that only scripts have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// Input columns that come back, unchanged, before the result columns.
    pub passthrough: Vec<String>,
    /// How input columns find their arguments.
    pub bind: Bind,
    /// T-SQL types of the result columns, where the function's own do not suit.
    result_columns: Vec<String>,
    /// An installed library, instead of an image.
    pub library: Option<String>,
    /// Inline code: its arguments, where the handler's annotations do not say them.
    arguments: Option<Vec<String>>,
    /// Inline code: its result type, where the handler's annotations do not say it.
    returns: Option<String>,
    /// Inline code: what the function makes of its calls.
    kind: FunctionKind,
    /// Inline code: whether a NULL argument makes the result NULL without a call.
    pub strict: bool,
}

/// The names of [`Keys`]' members.
const NAMES: &[&str] = &["passthrough", "bind", "result_columns", "library", "arguments", "returns", "kind", "strict"];

/// How input columns find their arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// In order; columns of `passthrough` are not arguments.
    #[default]
    Position,
    /// By name; columns that no argument asks for are left out.
    Name,
}

impl Script {
    /// Reads a script. `find_library` gives the image of an installed library: its name and digest.
    pub fn parse(text: &str, find_library: impl FnOnce(&str) -> Result<(String, String)>) -> Result<Script> {
        let mut body = FunctionBody::read_table(text)?;
        let mut own = toml::Table::new();
        for name in NAMES {
            if let Some(value) = body.remove(*name) {
                own.insert((*name).to_string(), value);
            }
        }
        let keys: Keys = own.try_into().map_err(|cause: toml::de::Error| {
            Error::invalid_definition(format!("the script is not valid: {}", cause.message().replace('`', "\"")))
        })?;
        if let Some(library) = &keys.library {
            for place in ["image", "digest", "source", "endpoint"] {
                if body.contains_key(place) {
                    return Err(Error::invalid_definition(format!(
                        "the keys \"library\" and \"{place}\" exclude each other"
                    )));
                }
            }
            let (image, digest) = find_library(library)?;
            body.insert("image".to_string(), image.into());
            body.insert("digest".to_string(), digest.into());
        }
        let body = FunctionBody::from_table(body)?;
        if body.server.is_some() {
            return Err(Error::invalid_definition("SQL Server knows no servers by name")
                .with_hint("Name the server's address with the key \"endpoint\"."));
        }
        if !body.tables.is_empty() {
            return Err(Error::invalid_definition("SQL Server knows no key \"tables\"")
                .with_detail("Shared tables are in PostgreSQL."));
        }
        if body.on_error != OnError::Fail {
            return Err(Error::invalid_definition("SQL Server knows no key \"on_error\"")
                .with_hint("Have the function return NULL, or a text, for what it cannot answer."));
        }
        let is_inline = body.source.is_some();
        if is_inline && body.function.is_none() {
            return Err(Error::invalid_definition("inline code needs the key \"function\"")
                .with_hint("Write function = \"...\" with the name that the source defines."));
        }
        // Nobody else says the signature of such a server's function.
        let is_declared = is_inline || body.dialect.is_some_and(|dialect| !dialect.has_signatures());
        if !is_declared {
            let given = [
                ("arguments", keys.arguments.is_some()),
                ("returns", keys.returns.is_some()),
                ("kind", keys.kind != FunctionKind::Scalar),
                ("strict", keys.strict),
            ];
            if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
                return Err(Error::invalid_definition(format!("the key \"{name}\" needs the key \"source\""))
                    .with_hint("An image's manifest says it."));
            }
        }
        let result_columns = keys.result_columns.iter().map(|text| ServerType::parse(text)).collect::<Result<_>>()?;
        let script = Script { body, keys, result_columns };
        script.inline_entry().check_types()?;
        Ok(script)
    }

    /// The manifest's entry for inline code.
    pub fn inline_entry(&self) -> FunctionEntry {
        FunctionEntry {
            arguments: self.keys.arguments.clone(),
            returns: self.keys.returns.clone(),
            kind: self.keys.kind,
            strict: self.keys.strict,
            volatility: Volatility::Volatile,
            ..FunctionEntry::named(self.body.function.as_deref().unwrap_or_default())
        }
    }

    /// What settings call the place that answers: an image's name or `inline:TEMPLATE`, or `endpoint:ADDRESS` for each of the
    /// servers that take turns.
    pub fn places(&self) -> Vec<String> {
        match (&self.body.image, &self.body.endpoint, &self.body.template) {
            (Some(image), ..) => vec![image.clone()],
            (_, Some(endpoint), _) => {
                endpoint.split(',').map(|address| format!("endpoint:{}", address.trim())).collect()
            }
            (.., template) => vec![format!("inline:{}", template.as_deref().unwrap_or_default())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Script> {
        let digest = format!("sha256:{}", "0".repeat(64));
        Script::parse(text, |name| Ok((format!("transship-library/{name}:1"), digest)))
    }

    #[test]
    fn keys_of_both_kinds_are_read() {
        let script = parse(
            "image = \"flights:1.0\"\r\nfunction = \"f\"\r\npassthrough = [\"id\"]\r\nbind = \"name\"\r\n\
             result_columns = [\"decimal(9, 2)\"]\r\nmax_batch_rows = 7",
        )
        .unwrap();
        assert_eq!(script.body.image.as_deref(), Some("flights:1.0"));
        assert_eq!((script.body.max_batch_rows, script.keys.bind), (Some(7), Bind::Name));
        assert_eq!(script.result_columns, [ServerType::Decimal { precision: 9, scale: 2 }]);
        assert_eq!(script.places(), ["flights:1.0"]);
    }

    #[test]
    fn pairs_may_share_a_line() {
        let script = parse("image = \"flights:1.0\"  function = \"arrival_delay\" passthrough = ['id']").unwrap();
        assert_eq!(script.body.function.as_deref(), Some("arrival_delay"));
        assert_eq!(script.keys.passthrough, ["id"]);
    }

    #[test]
    fn libraries_stand_for_their_images() {
        let script = parse("library = 'mine'\nfunction = 'f'").unwrap();
        assert_eq!(script.places(), ["transship-library/mine:1"]);
        assert!(script.body.digest.is_some());
        assert!(parse("library = 'mine'\nimage = 'x'").is_err());
    }

    #[test]
    fn inline_code_says_what_it_is() {
        let source = "template = 'python'\nsource = 'def f(x): pass'\n";
        let script =
            parse(&format!("{source}function = 'f'\narguments = ['x float8']\nreturns = 'float8'\nkind = 'table'"))
                .unwrap();
        let entry = script.inline_entry();
        assert_eq!((entry.name.as_str(), entry.kind), ("f", FunctionKind::Table));
        assert_eq!(script.places(), ["inline:python"]);
        assert!(parse(source).unwrap_err().message().contains("function"));
        assert!(
            parse(&format!("{source}function = 'f'\nreturns = 'flaot8'")).unwrap_err().message().contains("flaot8")
        );
    }

    #[test]
    fn each_address_is_a_place() {
        let script = parse("endpoint = 'http://a:1, http://b:2'\nfunction = 'f'").unwrap();
        assert_eq!(script.places(), ["endpoint:http://a:1", "endpoint:http://b:2"]);
    }

    #[test]
    fn wrong_scripts_are_refused_with_the_key() {
        for (text, word) in [
            ("", "image"),
            ("imagee = 'x'", "imagee"),
            ("image = 'x'\nbind = 'colour'", "colour"),
            ("image = 'x'\nkind = 'map'", "kind"),
            ("image = 'x'\nreturns = 'int4'", "returns"),
            ("image = 'x'\nresult_columns = ['xml']", "xml"),
            ("server = 'x'", "endpoint"),
            ("image = 'x'\non_error = 'null'", "on_error"),
            ("image = 'x'\ntables = ['t']", "tables"),
            ("image = 'x' 'y'", "not valid"),
            ("SELECT 1", "not valid"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
    }
}
