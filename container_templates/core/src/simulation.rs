//! HTTP's connections without the threads that answer them, for `simulation/`, which has one thread: a connection is a future, and
//! whoever polls it runs its calls. Seats, epoll, the queue of other languages and Flight stay outside.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;

use crate::container::Container;
use crate::exchanges::Exchanges;
use crate::function::Function;
use crate::rest::{self, Client};
use crate::seats;

/// A server of these functions, without a listener.
#[derive(Clone)]
pub struct Server(Arc<Container>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// A server that offers the forms of HTTP without shared memory.
    pub fn new(functions: Vec<Function>, keep_alive: bool, row_errors: bool) -> Server {
        let names: Vec<&str> = functions.iter().map(Function::name).collect();
        let greeting = json!({
            "protocol": 1, "server": "simulation", "functions": names, "transports": ["json", "socket"],
            "keep_alive": keep_alive, "constants": true, "row_errors": row_errors,
        });
        Server(Arc::new(Container { greeting: greeting.to_string(), functions, exchanges: Exchanges::default() }))
    }

    /// Answers a connection's requests until its end. `pause` is waited for before each request is looked at, and after it was
    /// answered: so long does the answer take.
    ///
    /// # Errors
    /// If the socket is none that a runtime can wait for, or the client has gone, or sent what is no HTTP.
    pub async fn answer<P, F>(&self, socket: UnixStream, pause: P) -> Result<(), String>
    where
        P: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let failed = |cause: std::io::Error| cause.to_string();
        socket.set_nonblocking(true).map_err(failed)?;
        let same = File::from(OwnedFd::from(socket.try_clone().map_err(failed)?));
        let stream = tokio::net::UnixStream::from_std(socket).map_err(failed)?;
        let (container, client) = (self.0.clone(), Arc::new(Client::new(Arc::new(same), false)));
        let service = service_fn(move |request| {
            let (container, client, pause) = (container.clone(), client.clone(), pause.clone());
            async move {
                pause().await;
                seats::let_run();
                let response = rest::respond(container, || (), request, client).await;
                pause().await;
                response as Result<_, Infallible>
            }
        });
        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.map_err(|cause| cause.to_string())
    }
}
