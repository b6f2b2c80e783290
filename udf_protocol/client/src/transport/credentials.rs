//! What a client shows to a server, and what it wants to see of the server: a token, certificates; and the way there.

use std::hash::{Hash, Hasher};

use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use udf_types::{Error, Result};

use crate::folder::Folder;
use crate::transport::proxy::Proxy;

/// What one user has for one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Credentials {
    /// A secret, sent with each request.
    pub token: Option<Token>,
    /// Whose signatures on servers' certificates are believed; those whom the system believes if left out.
    pub authorities: Option<Authorities>,
    /// Who the client is, for servers that ask for a certificate.
    pub identity: Option<Identity>,
    /// Headers that are sent with each request, such as an API key's.
    pub headers: Headers,
    /// The proxy through which it is reached over TCP.
    pub proxy: Option<Proxy>,
    /// Whether Flight's messages and JSON's replies are compressed (gzip).
    pub compression: bool,
    /// The user that a server behind a Unix socket must run as; any if left out.
    pub server_user: Option<u32>,
    /// The folder of a Unix socket, if it was opened for this process.
    pub folder: Option<Folder>,
}

impl Credentials {
    /// Whether something is shown to the server that others must not see.
    pub fn has_secrets(&self) -> bool {
        self.token.is_some() || !self.headers.0.is_empty()
    }

    /// All headers that are secret: the token's and the others.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = self.headers.0.iter().cloned().collect::<HeaderMap>();
        if let Some(token) = &self.token {
            headers.insert(http::header::AUTHORIZATION, token.header());
        }
        headers
    }
}

/// Headers with secret values. The values appear in no message and no log.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Headers(Vec<(HeaderName, HeaderValue)>);

impl Headers {
    /// Reads lines of `name: value`.
    pub fn new(text: &str) -> Result<Headers> {
        let read = |line: &str| {
            let (name, value) = line.split_once(':')?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            // These are the protocol's own.
            let is_free =
                ![http::header::HOST, http::header::CONTENT_LENGTH, http::header::TRANSFER_ENCODING].contains(&name);
            is_free.then_some((name, value))
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let headers: Option<Vec<_>> = lines.map(read).collect();
        headers.map(Headers).ok_or_else(|| {
            Error::invalid_definition("the headers are not lines of \"name: value\"")
                .with_hint("Each line names a header other than host, content-length and transfer-encoding.")
        })
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// A secret that a server asks for, as `Authorization: Bearer`. It appears in no message and no log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// A token of visible ASCII characters.
    pub fn new(text: &str) -> Result<Token> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Token(text.to_string()));
        }
        Err(Error::invalid_definition("a token consists of visible ASCII characters"))
    }

    /// The value of the header `authorization`.
    pub(crate) fn header(&self) -> http::HeaderValue {
        let mut value = http::HeaderValue::try_from(format!("Bearer {}", self.0)).expect("visible ASCII is valid");
        value.set_sensitive(true);
        value
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(...)")
    }
}

/// Certificates of authorities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads one certificate or several, as PEM.
    pub fn from_pem(pem: &str) -> Result<Authorities> {
        certificates(pem).map(Authorities)
    }

    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }
}

/// A client's certificate and its private key. The key appears in no message and no log.
pub struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a certificate, with those that lead to its authority if there are any, and its key, as PEM.
    pub fn from_pem(chain: &str, key: &str) -> Result<Identity> {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|_| Error::invalid_definition("the key is not a private key in PEM"))?;
        Ok(Identity { chain: certificates(chain)?, key })
    }
}

impl Clone for Identity {
    fn clone(&self) -> Identity {
        Identity { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.chain == other.chain && self.key.secret_der() == other.key.secret_der()
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.chain.hash(state);
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(...)")
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::invalid_definition("the certificate is not one in PEM")
            .with_detail("PEM starts with -----BEGIN CERTIFICATE-----.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_headers_are_secrets() {
        let token = Credentials { token: Some(Token::new("s3cret").unwrap()), ..Credentials::default() };
        let header = Credentials { headers: Headers::new("x-key: s3cret").unwrap(), ..Credentials::default() };
        assert!(token.has_secrets() && header.has_secrets() && !Credentials::default().has_secrets());
        assert!(!format!("{token:?} {header:?}").contains("s3cret"));
    }

    #[test]
    fn secrets_stay_out_of_sight() {
        let token = Token::new("s3cret").unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("s3cret"));
        assert!(Token::new("a b").is_err() && Token::new("").is_err() && Token::new("a\n").is_err());
    }

    #[test]
    fn headers_are_lines() {
        let headers = Headers::new("X-Api-Key: s3cret\n\n x-other:1 ").unwrap();
        assert_eq!(format!("{headers:?}"), "[\"x-api-key\", \"x-other\"]");
        let credentials = Credentials { headers, token: Some(Token::new("t").unwrap()), ..Credentials::default() };
        assert_eq!(credentials.headers().len(), 3);
        assert_eq!(credentials.headers()["x-other"], "1");
        for text in ["x", "a b: c", "host: other", "a: b\u{7}"] {
            assert!(Headers::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_pem_is_refused() {
        for text in ["", "x", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"] {
            assert!(Authorities::from_pem(text).is_err(), "{text}");
            assert!(Identity::from_pem(text, text).is_err(), "{text}");
        }
    }
}
