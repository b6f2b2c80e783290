//! Docker's Engine API over the daemon's Unix socket, for questions that are asked often: an answer takes a millisecond, where
//! starting the command line takes ten times as long.
//!
//! The command line stays the judge. It is asked wherever the daemon is not reached through a local socket, and whenever an
//! answer here is not plain: only `404` in the daemon's own words means that an object is missing, since the manager builds
//! images anew, and gives up replicas, that are missing. Only a daemon that does not answer in time is not asked again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use nix::unistd::{Uid, User};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use udf_client::names::percent_encoded;
use udf_types::{Error, Kind, Result};

use crate::runtime::program::TIMEOUT;

/// Where the daemon listens if nothing else is said.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// The context of the command line's that stands for [`DEFAULT_HOST`].
pub(super) const DEFAULT_CONTEXT: &str = "default";
/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// A daemon that is reached through a Unix socket.
#[derive(Debug)]
pub(super) struct DockerApi {
    socket: PathBuf,
    /// Longest wait for an answer.
    timeout: Duration,
}

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Image,
    Container,
}

impl Object {
    /// As the command line and the API's messages name it; in its paths, with an s.
    pub(super) fn name(self) -> &'static str {
        match self {
            Object::Image => "image",
            Object::Container => "container",
        }
    }
}

/// What the daemon said of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// This.
    Is(T),
    /// That there is none.
    Missing,
    /// Nothing that is plain: ask the command line.
    Unclear,
}

/// An answer over HTTP.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Bytes,
}

impl Answer {
    /// Whether it says, in the daemon's words, that there is no such object. A path that a daemon or a proxy does not know is
    /// `404` as well.
    fn says_missing(&self, object: Object) -> bool {
        #[derive(serde::Deserialize)]
        struct Refusal {
            message: String,
        }
        let words = format!("no such {}", object.name());
        self.status == 404
            && serde_json::from_slice::<Refusal>(&self.body)
                .is_ok_and(|refusal| refusal.message.to_ascii_lowercase().starts_with(&words))
    }
}

impl DockerApi {
    /// The daemon that the command line would ask; none if it is not reached through a Unix socket.
    pub(super) fn of_environment() -> Option<DockerApi> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let socket =
            socket_of(variable("DOCKER_HOST").as_deref(), variable("DOCKER_CONTEXT").as_deref(), &settings_folder()?)?;
        Some(DockerApi { socket, timeout: TIMEOUT })
    }

    /// Looks at an image or a container. An error if the daemon does not answer in time. Must not be called on an event loop.
    pub(super) fn inspect<T: DeserializeOwned>(&self, object: Object, name: &str) -> Result<Found<T>> {
        let path = format!("/{}s/{}/json", object.name(), escape(name));
        let Some(answer) = self.ask(Method::GET, &path, &format!("inspect {} \"{name}\"", object.name()))? else {
            return Ok(Found::Unclear);
        };
        if answer.says_missing(object) {
            return Ok(Found::Missing);
        }
        let found = (answer.status == 200).then(|| serde_json::from_slice(&answer.body).ok()).flatten();
        Ok(found.map_or(Found::Unclear, Found::Is))
    }

    /// Lets a paused container go on; whether the daemon says that it does.
    pub(super) fn unpause(&self, name: &str) -> Result<bool> {
        let path = format!("/containers/{}/unpause", escape(name));
        let answer = self.ask(Method::POST, &path, &format!("resume container \"{name}\""))?;
        Ok(answer.is_some_and(|answer| (200..300).contains(&answer.status)))
    }

    /// The whole answer, on a connection of its own; none if there is no such. A path without a version means the newest that
    /// the daemon knows.
    fn ask(&self, method: Method, path: &str, what: &str) -> Result<Option<Answer>> {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Ok(None) };
        let answered =
            runtime.block_on(async { tokio::time::timeout(self.timeout, self.exchange(method, path)).await });
        answered.map_err(|_| {
            let fact = format!("could not {what}: it took longer than {} s", self.timeout.as_secs());
            Error::new(Kind::ContainerFailed, fact).with_hint("See whether the Docker daemon hangs.")
        })
    }

    async fn exchange(&self, method: Method, path: &str) -> Option<Answer> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("Host", "docker");
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).ok()?).await.ok()?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.ok()?.to_bytes();
        Some(Answer { status, body })
    }
}

/// The socket of the daemon that docker's command line asks, given `DOCKER_HOST`, `DOCKER_CONTEXT` and the folder of its
/// settings. None if that daemon is elsewhere, or it cannot be told.
fn socket_of(host: Option<&str>, context: Option<&str>, config: &Path) -> Option<PathBuf> {
    // As there, a host goes before contexts, and the environment before settings.
    if host.is_none()
        && context.map_or_else(|| current_context(config), |context| Some(context.to_string()))? != DEFAULT_CONTEXT
    {
        return None;
    }
    let path = host.unwrap_or(DEFAULT_HOST).strip_prefix("unix://").map(PathBuf::from)?;
    path.is_absolute().then_some(path)
}

/// The folder of docker's settings.
pub(super) fn settings_folder() -> Option<PathBuf> {
    let variable = std::env::var_os("DOCKER_CONFIG").filter(|value| !value.is_empty()).map(PathBuf::from);
    variable.or_else(|| Some(home()?.join(".docker")))
}

/// The context that docker's settings choose; none if they cannot be read.
pub(super) fn current_context(config: &Path) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Settings {
        #[serde(rename = "currentContext", default)]
        current_context: String,
    }
    let chosen = match fs::read(config.join("config.json")) {
        Ok(text) => serde_json::from_slice::<Settings>(&text).ok()?.current_context,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(_) => return None,
    };
    Some(if chosen.is_empty() { DEFAULT_CONTEXT.to_string() } else { chosen })
}

/// The user's folder; services often have no `HOME`.
fn home() -> Option<PathBuf> {
    let variable = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    variable.or_else(|| Some(User::from_uid(Uid::current()).ok()??.dir))
}

/// A name as a part of a path (RFC 3986 §3.3). Names of images have slashes, which stay.
fn escape(name: &str) -> String {
    percent_encoded(name, b"/:@")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use serde_json::{Value, json};

    use super::*;

    /// A daemon that gives one answer, and the first line that it was asked; it hangs where the answer is empty.
    fn inspect(answer: &str, object: Object, name: &str) -> (Result<Found<Value>>, String) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let timeout = Duration::from_secs(if answer.is_empty() { 1 } else { 60 });
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(std::io::Result::ok);
                let first = lines.next().unwrap();
                lines.find(String::is_empty);
                // Whoever has read enough of it goes away.
                let _ = stream.write_all(answer.as_bytes());
                if answer.is_empty() {
                    lines.for_each(drop);
                }
                first
            });
            let found = DockerApi { socket: socket.clone(), timeout }.inspect(object, name);
            (found, asked.join().unwrap())
        })
    }

    fn answer(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn look(answer: &str) -> Found<Value> {
        inspect(answer, Object::Image, "a:1").0.unwrap()
    }

    #[test]
    fn an_object_is_what_the_daemon_says() {
        let (found, asked) = inspect(&answer("200 OK", r#"{"Id": "x"}"#), Object::Image, "localhost:5000/a/b:1.0");
        assert_eq!(found.unwrap(), Found::Is(json!({"Id": "x"})));
        assert_eq!(asked, "GET /images/localhost:5000/a/b:1.0/json HTTP/1.1");
        let pieces = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n5\r\n\": 1}\r\n0\r\n\r\n";
        assert_eq!(look(pieces), Found::Is(json!({"a": 1})));
        let (_, asked) = inspect(&answer("200 OK", "{}"), Object::Container, "a b?c#d%/\u{e4}\r\n");
        assert_eq!(asked, "GET /containers/a%20b%3Fc%23d%25/%C3%A4%0D%0A/json HTTP/1.1");
    }

    #[test]
    fn only_the_daemons_own_words_mean_that_an_object_is_missing() {
        assert_eq!(look(&answer("404 Not Found", r#"{"message":"No such image: a:1"}"#)), Found::Missing);
        // Docker 20.10 says it twice.
        let twice = r#"{"message":"no such image: a:1: No such image: a:1"}"#;
        assert_eq!(look(&answer("404 Not Found", twice)), Found::Missing);
        let (found, _) =
            inspect(&answer("404 Not Found", r#"{"message":"No such container: c"}"#), Object::Container, "c");
        assert_eq!(found.unwrap(), Found::Missing);
        for odd in [
            answer("404 Not Found", r#"{"message":"page not found"}"#),
            answer("404 Not Found", r#"{"message":"No such container: a:1"}"#),
            answer("404 Not Found", r#"{"message":"lookup x: no such image host"}"#),
            answer("404 Not Found", "No such image: a:1"),
            answer("404 Not Found", ""),
            answer("500 Internal Server Error", r#"{"message":"No such image: a:1"}"#),
            answer("503 Service Unavailable", ""),
            answer("301 Moved Permanently", r#"{"message":"No such image: a:1"}"#),
            answer("200 OK", r#"{"message":"No such image: a:1""#),
            answer("200 OK", ""),
            // Connections that end too early.
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"Id\": 1}".to_string(),
            "HTTP/1.1 404 Not Found\r\nContent-Length: 90\r\n\r\n{\"message\":\"No such image: a:1\"}".to_string(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"Id\": 1}\r\n".to_string(),
            "HTTP/1.1 2".to_string(),
            "\r\n".to_string(),
            "no HTTP\r\n\r\n".to_string(),
            // More than is read.
            answer("200 OK", &format!("{{\"Id\": \"{}\"}}", "x".repeat(MAX_ANSWER_BYTES))),
        ] {
            let shown: String = odd.chars().take(200).collect();
            assert_eq!(look(&odd), Found::Unclear, "{shown}");
        }
    }

    #[test]
    fn docker_itself_has_these_words() {
        let engines = std::env::var("TRANSSHIP_TEST_ENGINES").unwrap_or_default();
        let Some(api) = DockerApi::of_environment().filter(|_| engines.contains("docker")) else { return };
        let digest = format!("sha256:{}", "0".repeat(64));
        for (object, name) in
            [(Object::Image, "transship-none:1"), (Object::Image, &digest), (Object::Container, "transship-none")]
        {
            assert_eq!(api.inspect::<Value>(object, name).unwrap(), Found::Missing, "{name}");
        }
        assert_eq!(api.inspect::<Value>(Object::Image, "../images/x").unwrap(), Found::Unclear);
    }

    #[test]
    fn a_daemon_that_hangs_is_an_error_and_one_that_is_not_there_is_none() {
        let started = Instant::now();
        let (found, _) = inspect("", Object::Container, "c");
        let error = found.unwrap_err();
        assert_eq!(error.message(), "could not inspect container \"c\": it took longer than 1 s");
        assert!(started.elapsed() < Duration::from_secs(30));
        // One that is stopped accepts nothing, and connections are made all the same.
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let api = DockerApi { socket, timeout: Duration::from_millis(200) };
        assert!(api.inspect::<Value>(Object::Image, "a").is_err());
        assert!(api.unpause("a").is_err());
        drop(listener);
        assert_eq!(api.inspect::<Value>(Object::Image, "a").unwrap(), Found::Unclear);
        assert!(!api.unpause("a").unwrap());
    }

    #[test]
    fn the_daemon_is_the_one_that_the_command_line_asks() {
        let config = tempfile::tempdir().unwrap();
        let socket = |host, context| socket_of(host, context, config.path());
        let (standard, own) = (PathBuf::from("/var/run/docker.sock"), PathBuf::from("/a/b.sock"));
        assert_eq!(socket(None, None), Some(standard.clone()));
        assert_eq!(socket(None, Some("default")), Some(standard.clone()));
        assert_eq!(socket(None, Some("other")), None);
        assert_eq!(socket(Some("unix:///a/b.sock"), Some("other")), Some(own.clone()));
        for host in
            ["tcp://127.0.0.1:2375", "ssh://host", "npipe:////./pipe/docker", "fd://", "unix://", "unix://a", "/a"]
        {
            assert_eq!(socket(Some(host), None), None, "{host}");
        }
        for (settings, is_standard) in [
            ("{}", true),
            (r#"{"auths": {}, "currentContext": "default"}"#, true),
            (r#"{"currentContext": ""}"#, true),
            (r#"{"currentContext": "other"}"#, false),
            ("nonsense", false),
        ] {
            fs::write(config.path().join("config.json"), settings).unwrap();
            assert_eq!(socket(None, None), is_standard.then(|| standard.clone()), "{settings}");
            assert_eq!(socket(None, Some("default")), Some(standard.clone()));
            assert_eq!(socket(Some("unix:///a/b.sock"), None), Some(own.clone()));
        }
    }
}
