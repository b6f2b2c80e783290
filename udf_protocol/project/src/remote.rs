//! Servers that run elsewhere: their addresses, and what they speak.

use std::fmt;
use std::net::IpAddr;

use udf_types::{Advice, Error, Result};

use crate::dialect::Dialect;
use crate::endpoint::Endpoint;
use udf_types::transport_name::TransportName;

/// Equal servers, each of which answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Their addresses; at least one, all of the same transport.
    pub endpoints: Vec<Endpoint>,
    /// The path of an HTTP server; empty if the dialect's own is meant.
    path: String,
    dialect: Dialect,
}

impl Remote {
    /// Reads addresses with commas between them. Over HTTP they may end with a path, which is the same for all.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Remote> {
        let (mut endpoints, mut paths) = (Vec::new(), Vec::new());
        for address in text.split(',').map(str::trim) {
            let (address, path) = split_path(address);
            endpoints.push(Endpoint::parse(&address)?);
            paths.push(path);
        }
        if endpoints.iter().any(|endpoint| !is_plain(endpoint)) || paths.iter().any(|path| has_dots(path)) {
            return Err(Error::invalid_definition(format!("invalid endpoint \"{text}\""))
                .with_detail("A path must have no parts \".\" or \"..\", and that of a socket no empty ones."));
        }
        paths.dedup();
        let refuse = |fact: &str| {
            Err(Error::invalid_definition(format!("invalid endpoint \"{text}\"")).with_detail(fact.to_string()))
        };
        let transport = endpoints[0].transport_name();
        if endpoints.iter().any(|endpoint| endpoint.transport_name() != transport) {
            return refuse("All addresses must be of the same kind.");
        }
        if paths.len() > 1 {
            return refuse("All addresses must have the same path.");
        }
        if dialect.transport().is_some_and(|wanted| wanted != transport) {
            let fact = format!("Dialect \"{}\" is not spoken over {}.", dialect.name(), transport.name());
            return refuse(&fact);
        }
        let path = paths.pop().unwrap_or_default();
        if dialect == Dialect::Transship && !path.is_empty() {
            return Err(refuse("Servers of this protocol have no path.")
                .unwrap_err()
                .with_hint("Name what the server speaks with the key \"dialect\"."));
        }
        Ok(Remote { endpoints, path, dialect })
    }

    /// Refuses secrets, if there are any, that would cross a network for everybody on the way to read: over TCP without TLS, to
    /// another host than this.
    pub fn check_secrecy(&self, has_secrets: bool) -> Result<()> {
        let is_open = |endpoint: &&Endpoint| match endpoint {
            Endpoint::FlightTcp(authority) | Endpoint::JsonTcp(authority) => !is_loopback(authority),
            _ => false,
        };
        match self.endpoints.iter().find(is_open).filter(|_| has_secrets) {
            None => Ok(()),
            Some(endpoint) => {
                Err(Error::invalid_definition(format!("a secret for \"{endpoint}\" would travel as plain text"))
                    .with_detail("The address has no TLS, and is not of this host.")
                    .with_advice(Advice::PlaintextSecrets))
            }
        }
    }

    /// How batches travel if nothing else is asked for.
    pub fn transport_name(&self) -> TransportName {
        self.endpoints[0].transport_name()
    }

    /// What the servers speak.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The path of an HTTP server; empty if the dialect's own is meant.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl From<Endpoint> for Remote {
    fn from(endpoint: Endpoint) -> Remote {
        Remote { endpoints: vec![endpoint], path: String::new(), dialect: Dialect::Transship }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, endpoint) in self.endpoints.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            write!(f, "{comma}{endpoint}{}", self.path)?;
        }
        Ok(())
    }
}

/// Whether an address leads where its text says, which is all that lists of allowed endpoints look at.
fn is_plain(endpoint: &Endpoint) -> bool {
    let (Endpoint::FlightUnix(path) | Endpoint::JsonUnix(path)) = endpoint else { return true };
    path.to_str().is_some_and(|path| path.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")))
}

/// Whether the path of an HTTP server has parts that a client, a gateway or the server takes away.
fn has_dots(path: &str) -> bool {
    let mut path = path.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    for (escape, character) in [("%2e", "."), ("%2f", "/"), ("%5c", "\\"), ("%3b", ";")] {
        path = path.replace(escape, character);
    }
    // Some servers take what follows a semicolon for parameters of the part.
    path.split(['/', '\\']).any(|part| matches!(part.split(';').next(), Some("." | "..")))
}

/// Whether host and port are of this host.
fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

/// The address, with the usual port if it names none, and the path of an HTTP server.
fn split_path(address: &str) -> (String, String) {
    for (scheme, port) in [("http://", 80), ("https://", 443)] {
        let Some(rest) = address.strip_prefix(scheme) else { continue };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let authority = if has_port { authority.to_string() } else { format!("{authority}:{port}") };
        let path = if path == "/" { String::new() } else { path.to_string() };
        return (format!("{scheme}{authority}"), path);
    }
    (address.to_string(), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_on_this_host_or_are_encrypted() {
        for (text, is_kept) in [
            ("http://localhost:1", true),
            ("grpc://127.9.9.9:1", true),
            ("http://[::1]:1", true),
            ("unix:/x", true),
            ("https://a:1", true),
            ("grpcs://10.0.0.1:1", true),
            ("http://a:1", false),
            ("grpc://10.0.0.1:1", false),
            ("http://localhost.evil:1", false),
            ("http://127.0.0.1.evil:1", false),
            ("http://localhost:1,http://[2001:db8::1]:1", false),
        ] {
            let remote = Remote::parse(text, Dialect::Transship).unwrap();
            assert!(remote.check_secrecy(false).is_ok());
            assert_eq!(remote.check_secrecy(true).is_ok(), is_kept, "{text}");
        }
    }

    #[test]
    fn paths_lead_where_their_text_says() {
        let is_read = |text: &str, dialect| Remote::parse(text, dialect).is_ok();
        for path in
            ["/run/a/../b.sock", "/..", "/run/./b.sock", "/run//b.sock", "//b.sock", "/", "/run/b.sock/", "/run/.."]
        {
            for scheme in ["unix", "http+unix"] {
                assert!(!is_read(&format!("{scheme}:{path}"), Dialect::Transship), "{path}");
                assert!(!is_read(&format!("{scheme}:/run/b.sock, {scheme}:{path}"), Dialect::Transship), "{path}");
            }
        }
        assert!(is_read("unix:/run/.hidden/..b/a...sock", Dialect::Transship));
        for (path, is_plain) in [
            ("/models/../admin", false),
            ("/models/..", false),
            ("/./x?y", false),
            ("/models/%2E%2e/admin", false),
            ("/models/..\\admin", false),
            ("/models/..%2Fadmin", false),
            ("/models%2f..%5cadmin", false),
            ("/models/..;x=1/admin", false),
            ("/models/%2e%2E%3bx/admin", false),
            ("/models/a%2Fb;v=1/c", true),
            ("/models/a..b/v1.2?file=../x", true),
            ("?from=..", true),
        ] {
            assert_eq!(is_read(&format!("http://a:1{path}"), Dialect::Mlflow), is_plain, "{path}");
        }
    }

    #[test]
    fn addresses_are_read_together() {
        let read = |text: &str, dialect| Remote::parse(text, dialect).map(|remote| remote.to_string());
        assert_eq!(read("grpc://a:1, grpc://b:2", Dialect::Transship).unwrap(), "grpc://a:1,grpc://b:2");
        assert_eq!(read("https://a/f?code=1", Dialect::Array).unwrap(), "https://a:443/f?code=1");
        assert_eq!(read("http://a/x, http://b/x", Dialect::Mlflow).unwrap(), "http://a:80/x,http://b:80/x");
        assert_eq!(read("http://[::1]:8080/", Dialect::Snowflake).unwrap(), "http://[::1]:8080");
        for (text, dialect, fact) in [
            ("grpc://a:1,http://b:2", Dialect::Transship, "same kind"),
            ("http://a/x,http://b/y", Dialect::Mlflow, "same path"),
            // Lists of allowed endpoints have the second address without the path of the first.
            ("http://a/x, http://b", Dialect::Mlflow, "same path"),
            ("grpc://a:1", Dialect::Mlflow, "not spoken over flight"),
            ("http://a/x", Dialect::Transship, "no path"),
        ] {
            let error = Remote::parse(text, dialect).unwrap_err();
            assert!(error.detail().unwrap().contains(fact), "{error}");
        }
        assert!(
            Remote::parse("grpc://a", Dialect::Transship).is_err() && Remote::parse("", Dialect::Transship).is_err()
        );
    }
}
