//! Addresses of servers, as users write them.

use std::path::PathBuf;

use udf_types::{Error, Result};

use udf_types::transport_name::TransportName;

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `unix:/path`: Flight over a Unix socket.
    FlightUnix(PathBuf),
    /// `grpc://host:port`: Flight over TCP.
    FlightTcp(String),
    /// `grpcs://host:port`: Flight over TLS.
    FlightTls(String),
    /// `http+unix:/path`: JSON over HTTP over a Unix socket.
    JsonUnix(PathBuf),
    /// `http://host:port`: JSON over HTTP over TCP.
    JsonTcp(String),
    /// `https://host:port`: JSON over HTTP over TLS.
    JsonTls(String),
}

impl Endpoint {
    /// Reads an endpoint as users write it.
    pub fn parse(text: &str) -> Result<Endpoint> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Endpoint::FlightUnix(absolute(text, path)?));
        }
        if let Some(path) = text.strip_prefix("http+unix:") {
            return Ok(Endpoint::JsonUnix(absolute(text, path)?));
        }
        if let Some(authority) = text.strip_prefix("grpc://") {
            return Ok(Endpoint::FlightTcp(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("grpcs://") {
            return Ok(Endpoint::FlightTls(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("https://") {
            return Ok(Endpoint::JsonTls(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("http://") {
            return Ok(Endpoint::JsonTcp(host_and_port(text, authority)?));
        }
        Err(Error::invalid_definition(format!("invalid endpoint \"{text}\""))
            .with_hint("An endpoint starts with grpc://, grpcs://, http://, https://, unix: or http+unix:."))
    }

    /// How batches travel there, if nothing else is asked for.
    pub fn transport_name(&self) -> TransportName {
        match self {
            Endpoint::FlightUnix(_) | Endpoint::FlightTcp(_) | Endpoint::FlightTls(_) => TransportName::Flight,
            Endpoint::JsonUnix(_) | Endpoint::JsonTcp(_) | Endpoint::JsonTls(_) => TransportName::Json,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::FlightUnix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::FlightTcp(authority) => write!(f, "grpc://{authority}"),
            Endpoint::FlightTls(authority) => write!(f, "grpcs://{authority}"),
            Endpoint::JsonUnix(path) => write!(f, "http+unix:{}", path.display()),
            Endpoint::JsonTls(authority) => write!(f, "https://{authority}"),
            Endpoint::JsonTcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

fn absolute(text: &str, path: &str) -> Result<PathBuf> {
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    Err(Error::invalid_definition(format!("invalid endpoint \"{text}\"")).with_detail("The path must be absolute."))
}

/// Host and port, as an authority of RFC 3986; `text` is what the error repeats.
pub fn host_and_port(text: &str, authority: &str) -> Result<String> {
    let authority = authority.trim_end_matches('/');
    let port = authority.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>()));
    if matches!(port, Some(Ok(_))) && http::uri::Authority::try_from(authority).is_ok() {
        return Ok(authority.to_string());
    }
    Err(Error::invalid_definition(format!("invalid endpoint \"{text}\"")).with_detail("Expected host and port."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_back_as_written() {
        for text in [
            "unix:/run/a.sock",
            "http+unix:/run/b.sock",
            "grpc://localhost:8815",
            "http://[::1]:80",
            "grpcs://a.b:1",
            "https://h:443",
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp://a:1", "unix:relative", "grpc://host", "grpc://:1", "http://h:70000", "grpcs://h", "https://"]
        {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
