//! The address of a collector, as `--otlp-endpoint` gives it.

use std::str::FromStr;

/// Where a collector takes spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// Host and port.
    pub authority: String,
    /// The address of traces there.
    pub path: String,
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<OtlpEndpoint, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err("expected http://HOST:PORT; a collector on this host can send spans on over TLS".to_string());
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let uri: hyper::Uri = text.parse().map_err(|_| "expected http://HOST:PORT")?;
        // A fragment is left out of what was parsed, and a port that is none, too.
        if uri.host().is_none_or(str::is_empty) || authority.contains('@') || text.contains(['?', '#']) {
            return Err("expected http://HOST:PORT".to_string());
        }
        let has_port = authority.rsplit_once(']').map_or(authority, |(_, rest)| rest).contains(':');
        if has_port && uri.port_u16().is_none_or(|port| port == 0) {
            return Err("expected http://HOST:PORT, with a port from 1 to 65535".to_string());
        }
        let authority = if has_port { authority.to_string() } else { format!("{authority}:4318") };
        // As OpenTelemetry's clients make the address of the base.
        Ok(OtlpEndpoint { authority, path: format!("{}/v1/traces", base.trim_end_matches('/')) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_base_address() {
        let parse = |text: &str| text.parse::<OtlpEndpoint>();
        for (text, authority, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/traces"),
            ("http://collector/", "collector:4318", "/v1/traces"),
            ("http://[::1]:80/otlp/", "[::1]:80", "/otlp/v1/traces"),
        ] {
            let expected = OtlpEndpoint { authority: authority.to_string(), path: path.to_string() };
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "127.0.0.1:4318",
            "https://a:4318",
            "http://",
            "http:///x",
            "http://u:p@a",
            "http://a?x",
            "http://a/?",
            "http://a b",
            "http://a#x",
            "http://a/x#y",
            "http://a:",
            "http://a:/x",
            "http://[::1]:",
            "http://a:0",
            "http://a:65536",
            "http://a:x",
            "http://::1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
