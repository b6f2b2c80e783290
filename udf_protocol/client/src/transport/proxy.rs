//! Proxies through which servers are reached.

use udf_project::endpoint::host_and_port;
use udf_types::{Error, Result};

/// An HTTP proxy that makes tunnels (CONNECT, RFC 9110 §9.3.6).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    pub(crate) authority: String,
    /// User and password.
    pub(crate) login: Option<String>,
}

impl Proxy {
    /// Reads `http://host:port` or `http://user:password@host:port`.
    pub fn new(text: &str) -> Result<Proxy> {
        let refuse = || {
            Error::invalid_definition("invalid proxy")
                .with_hint("A proxy is http://host:port, or http://user:password@host:port.")
        };
        let rest = text.trim().strip_prefix("http://").ok_or_else(refuse)?;
        let (login, authority) = match rest.rsplit_once('@') {
            Some((login, authority)) => (Some(login.to_string()), authority),
            None => (None, rest),
        };
        Ok(Proxy { authority: host_and_port(text, authority).map_err(|_| refuse())?, login })
    }

    /// Whether another has the same host and port, whoever logs in there.
    pub fn is_at(&self, other: &Proxy) -> bool {
        self.authority.eq_ignore_ascii_case(&other.authority)
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("authority", &self.authority).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_read_and_do_not_show_their_passwords() {
        let proxy = Proxy::new(" http://me:s3cret@proxy.example:3128 ").unwrap();
        assert_eq!((proxy.authority.as_str(), proxy.login.as_deref()), ("proxy.example:3128", Some("me:s3cret")));
        assert!(!format!("{proxy:?}").contains("s3cret"));
        assert_eq!(Proxy::new("http://[::1]:80").unwrap().login, None);
        for (text, is_same) in [
            ("http://Proxy.example:3128", true),
            ("http://proxy.example:3129", false),
            ("http://proxy.example:3128@other.example:3128", false),
        ] {
            assert_eq!(proxy.is_at(&Proxy::new(text).unwrap()), is_same, "{text}");
        }
        for text in ["proxy:3128", "https://proxy:3128", "http://proxy", "http://:1", ""] {
            assert!(Proxy::new(text).is_err(), "{text}");
        }
    }
}
