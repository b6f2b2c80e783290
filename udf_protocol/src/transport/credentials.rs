//! What a client shows to a server, and what it wants to see of the server: a token, certificates.

use std::hash::{Hash, Hasher};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{Error, Result};

/// What one user has for one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Credentials {
    /// A secret, sent with each request.
    pub token: Option<Token>,
    /// Whose signatures on servers' certificates are believed; those whom the system believes if left out.
    pub authorities: Option<Authorities>,
    /// Who the client is, for servers that ask for a certificate.
    pub identity: Option<Identity>,
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
    fn secrets_stay_out_of_sight() {
        let token = Token::new("s3cret").unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("s3cret"));
        assert!(Token::new("a b").is_err() && Token::new("").is_err() && Token::new("a\n").is_err());
    }

    #[test]
    fn what_is_no_pem_is_refused() {
        for text in ["", "x", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"] {
            assert!(Authorities::from_pem(text).is_err(), "{text}");
            assert!(Identity::from_pem(text, text).is_err(), "{text}");
        }
    }
}
