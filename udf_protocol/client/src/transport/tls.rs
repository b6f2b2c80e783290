//! TLS to a server, over TCP: one implementation for Flight and for JSON.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::transport::credentials::Credentials;
use crate::transport::tcp::Tcp;

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Tls {
    tcp: Tcp,
    /// What is wrong with the credentials is said when they are used.
    config: std::result::Result<Arc<ClientConfig>, String>,
}

impl Tls {
    /// TLS with the server at `authority`, which must speak `protocol` (ALPN, RFC 7301).
    pub(crate) fn new(authority: &str, credentials: &Credentials, protocol: &str) -> Tls {
        let config = client_config(credentials, protocol).map(Arc::new);
        Tls { tcp: Tcp::new(authority, credentials), config }
    }

    /// Connects, and checks that the server is who it should be.
    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config.clone().map_err(io::Error::other)?;
        let host = http::uri::Authority::try_from(self.tcp.authority()).map_err(io::Error::other)?;
        let host = host.host().trim_start_matches('[').trim_end_matches(']').to_string();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, self.tcp.connect().await?).await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

fn client_config(credentials: &Credentials, protocol: &str) -> std::result::Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match &credentials.authorities {
        Some(authorities) => {
            for certificate in authorities.certificates() {
                roots
                    .add(certificate.clone())
                    .map_err(|cause| format!("the authority's certificate is not valid: {cause}"))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("the system has no certificates of authorities".to_string());
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|cause| cause.to_string())?
        .with_root_certificates(roots);
    let mut config = match credentials.identity.clone() {
        Some(identity) => builder
            .with_client_auth_cert(identity.chain, identity.key)
            .map_err(|cause| format!("the client's certificate and key do not fit: {cause}"))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(config)
}
