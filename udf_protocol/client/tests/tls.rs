//! TLS: whom the client believes, whom it does not, and what it shows of itself. A proxy ends TLS before a mock container.

mod support;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use futures_util::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use support::{MockContainer, reply, schema_of};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_client::transport::credentials::{Authorities, Identity};
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Error, Kind};

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

/// Whoever signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_string()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn believed(&self) -> Credentials {
        Credentials { authorities: Some(Authorities::from_pem(&self.0.pem()).unwrap()), ..Credentials::default() }
    }
}

/// Servers that add one: Flight and JSON, each behind TLS.
struct Stage {
    runtime: Runtime,
    flight: PathBuf,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mock = MockContainer {
            hello: Some(r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#.to_string()),
            signature: signature(),
            script: Arc::new(|mut calls, answers| {
                Box::pin(async move {
                    let _ = answers.send(Ok(schema_of(&signature())));
                    while let Some((batch, metadata)) = calls.next().await {
                        let sums = batch.column(0).as_primitive::<Int64Type>().iter().map(|x| x.map(|x| x + 1));
                        let _ = answers.send(Ok(reply(&signature(), sums.collect(), &metadata)));
                    }
                })
            }),
        };
        let flight = runtime.block_on(async { mock.start(folder.path()) });
        Stage { runtime, flight, _folder: folder }
    }

    /// Starts a server with this certificate; the port on which it listens.
    fn serve(&self, certificate: &(String, String), clients: Option<&Authority>, is_json: bool) -> u16 {
        let flight = self.flight.clone();
        let protocol = if is_json { "http/1.1" } else { "h2" };
        self.serve_with(certificate, clients, protocol, move |mut stream| {
            let flight = flight.clone();
            Box::pin(async move {
                if is_json {
                    answer_json(stream).await;
                } else {
                    let mut inner = UnixStream::connect(flight).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
                }
            })
        })
    }

    /// The same of what does anything with a connection.
    fn serve_with(
        &self,
        certificate: &(String, String),
        clients: Option<&Authority>,
        protocol: &str,
        work: impl Fn(TlsStream<TcpStream>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> u16 {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            Some(authority) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.0.pem().as_bytes()).unwrap()).unwrap();
                let provider = Arc::new(ring::default_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let chain = vec![CertificateDer::from_pem_slice(certificate.0.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(certificate.1.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let work = Arc::new(work);
        self.runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, work) = (acceptor.clone(), work.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        work(stream).await;
                    }
                });
            }
        });
        port
    }
}

/// Answers any request with one column of 42.
async fn answer_json(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !request.ends_with(b"]]}") {
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let body = r#"{"batch": 0, "columns": [[42]]}"#;
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// Calls f(41).
fn call(endpoint: &str, credentials: Credentials) -> Result<i64, Error> {
    let endpoint = Endpoint::parse(endpoint)?;
    let transport = endpoint.transport_name();
    let client = Client::start()?;
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote: endpoint.into(), credentials },
        transport,
        signature: signature(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    let mut builder = BatchBuilder::new(&signature());
    let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
    column.append_value(41);
    builder.finish_row();
    exchange.send(builder.finish_batch());
    let reply = exchange.receive(&PlainHost)?;
    assert_eq!((reply.columns.num_rows(), transport), (1, transport));
    Ok(reply.columns.column(0).as_primitive::<Int64Type>().value(0))
}

fn both(mut check: impl FnMut(TransportName, &str)) {
    check(TransportName::Flight, "grpcs");
    check(TransportName::Json, "https");
}

#[track_caller]
fn expect_refusal(outcome: Result<i64, Error>, words: &[&str]) {
    let error = outcome.expect_err("it was believed");
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    assert!(words.iter().any(|word| error.to_string().contains(word)), "{error}");
}

#[test]
fn servers_of_the_authority_are_believed() {
    let (stage, authority) = (Stage::new(), Authority::new());
    both(|transport, scheme| {
        for name in ["localhost", "127.0.0.1"] {
            let port = stage.serve(&authority.sign(name), None, transport == TransportName::Json);
            assert_eq!(call(&format!("{scheme}://{name}:{port}"), authority.believed()).unwrap(), 42);
        }
    });
}

#[test]
fn others_are_not() {
    let (stage, authority, other) = (Stage::new(), Authority::new(), Authority::new());
    both(|transport, scheme| {
        let is_json = transport == TransportName::Json;
        // Of another authority; of this one, for another name; and nobody the system knows.
        let port = stage.serve(&other.sign("localhost"), None, is_json);
        expect_refusal(
            call(&format!("{scheme}://localhost:{port}"), authority.believed()),
            &["UnknownIssuer", "BadSignature"],
        );
        expect_refusal(
            call(&format!("{scheme}://localhost:{port}"), Credentials::default()),
            &["UnknownIssuer", "no certificates"],
        );
        let port = stage.serve(&authority.sign("example.org"), None, is_json);
        expect_refusal(call(&format!("{scheme}://localhost:{port}"), authority.believed()), &["not valid for name"]);
    });
}

#[test]
fn clients_show_their_certificate() {
    let (stage, authority) = (Stage::new(), Authority::new());
    let (certificate, key) = authority.sign("client");
    let (_, other_key) = authority.sign("client");
    let identified = |key: &str| Credentials {
        identity: Some(Identity::from_pem(&certificate, key).unwrap()),
        ..authority.believed()
    };
    both(|transport, scheme| {
        let port = stage.serve(&authority.sign("localhost"), Some(&authority), transport == TransportName::Json);
        let endpoint = format!("{scheme}://localhost:{port}");
        assert_eq!(call(&endpoint, identified(&key)).unwrap(), 42);
        // The server's refusal may arrive as an alert, or only as a connection that is gone.
        let gone = ["CertificateRequired", "reset", "closed", "broken pipe", "Broken pipe"];
        expect_refusal(call(&endpoint, authority.believed()), &gone);
        expect_refusal(call(&endpoint, identified(&other_key)), &["do not fit"]);
    });
}

/// Reads a request late, and counts the bytes of its body once all of them are there.
async fn count_late(mut stream: impl AsyncRead + AsyncWrite + Unpin, counted: mpsc::Sender<usize>) {
    let mut request = Vec::new();
    let mut piece = vec![0; 64 << 10];
    tokio::time::sleep(Duration::from_millis(30)).await;
    loop {
        let text = String::from_utf8_lossy(&request[..request.len().min(1024)]).to_ascii_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let (length, come) = (length.unwrap_or_default(), request.len() - head.len() - 4);
            if head.starts_with("get ") {
                let body = r#"{"protocol": 1, "functions": ["f"], "transports": ["json", "socket"]}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                request.clear();
                continue;
            }
            if come >= length {
                let _ = counted.send(come);
                return;
            }
        }
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
}

#[test]
fn a_server_that_reads_late_gets_all() {
    let (stage, authority) = (Stage::new(), Authority::new());
    let (counted, counts) = mpsc::channel();
    let port = stage.serve_with(&authority.sign("localhost"), None, "http/1.1", move |stream| {
        Box::pin(count_late(stream, counted.clone()))
    });
    let signature = Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Text }], Type::Int8);
    let client = Client::start().unwrap();
    let call = Arc::new(Call {
        target: Target::Remote {
            remote: Endpoint::parse(&format!("https://localhost:{port}")).unwrap().into(),
            credentials: authority.believed(),
        },
        transport: TransportName::Socket,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(60),
        start_timeout: Duration::from_secs(60),
        tables: Vec::new(),
    });
    // Some of these fill what the kernel holds on the way, and leave a rest in what TLS holds.
    for length in (50..=140).map(|count| count * (48 << 10)) {
        let mut builder = BatchBuilder::new(&signature);
        let ColumnBuilder::Text(column) = builder.column(0) else { panic!("a column of text") };
        column.append_value("x".repeat(length));
        builder.finish_row();
        let mut exchange = client.open(call.clone());
        exchange.send(builder.finish_batch());
        // It has nothing to answer.
        assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::Unreachable, "{length}");
        assert!(counts.recv().unwrap() > length);
    }
}

#[test]
fn a_server_without_tls_is_no_server_with_it() {
    let stage = Stage::new();
    let listener = stage.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    stage.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let authority = Authority::new();
    both(|_, scheme| {
        let outcome = call(&format!("{scheme}://127.0.0.1:{port}"), authority.believed());
        expect_refusal(outcome, &["InvalidContentType", "corrupt", "reset"]);
    });
}
