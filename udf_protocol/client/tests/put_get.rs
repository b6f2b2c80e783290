//! Servers that store one table for all callers: whatever becomes of a call, the next one gets its own rows.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use support::{MockContainer, Script, Verb, reply, schema_of};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tonic::Status;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, RowErrors, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

/// For a second call that should not begin yet.
const MOMENT: Duration = Duration::from_millis(300);

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

/// A server that adds one to the value that it stores, and refuses a value below zero.
struct Stored {
    value: AtomicI64,
    result: AtomicI64,
    scorings: AtomicUsize,
    first_begins: Notify,
    second_begins: Notify,
    /// Lets the first scoring go on.
    first_may_end: Notify,
    /// Has a permit for everybody once it has ended.
    first_ended: Semaphore,
}

impl Stored {
    fn new() -> Stored {
        let (value, result, scorings, first_begins, second_begins, first_may_end) = Default::default();
        Stored { value, result, scorings, first_begins, second_begins, first_may_end, first_ended: Semaphore::new(0) }
    }

    async fn score(&self) -> std::result::Result<(), Status> {
        let value = self.value.load(SeqCst);
        match self.scorings.fetch_add(1, SeqCst) {
            _ if value < 0 => return Err(Status::unknown("below zero")),
            0 => {
                self.first_begins.notify_one();
                self.first_may_end.notified().await;
                self.result.store(value + 1, SeqCst);
                self.first_ended.add_permits(1);
            }
            1 => {
                self.result.store(value + 1, SeqCst);
                self.second_begins.notify_one();
                // The other one stores its results after this one.
                drop(self.first_ended.acquire().await);
            }
            _ => self.result.store(value + 1, SeqCst),
        }
        Ok(())
    }
}

struct Server {
    stored: Arc<Stored>,
    runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Server {
    fn new() -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Server { stored: Arc::new(Stored::new()), runtime, folder: tempfile::tempdir().unwrap() }
    }

    fn start(&self) {
        let stored = self.stored.clone();
        let script: Script = Arc::new(move |mut calls, answers| {
            let stored = stored.clone();
            Box::pin(async move {
                match calls.verb {
                    Verb::Put => {
                        let (batch, _) = calls.next().await.unwrap();
                        stored.value.store(batch.column(0).as_primitive::<Int64Type>().value(0), SeqCst);
                    }
                    Verb::Score => {
                        if let Err(status) = stored.score().await {
                            let _ = answers.send(Err(status));
                        }
                    }
                    Verb::Get => {
                        let _ = answers.send(Ok(schema_of(&signature())));
                        let _ = answers.send(Ok(reply(&signature(), vec![Some(stored.result.load(SeqCst))], "")));
                    }
                    Verb::Exchange => panic!("there are no exchanges"),
                }
            })
        });
        let mock = MockContainer { hello: None, signature: signature(), script };
        self.runtime.block_on(async { mock.start(self.folder.path()) });
    }

    /// Lets the first call end once the second has begun, if it begins.
    fn end_first_call(&self) {
        self.runtime.block_on(async {
            let _ = tokio::time::timeout(MOMENT, self.stored.second_begins.notified()).await;
            self.stored.first_may_end.notify_one();
        });
    }
}

fn send(client: &Client, folder: &Path, value: i64, timeout: Duration) -> Exchange {
    send_call(client, folder, value, timeout, None)
}

fn send_call(client: &Client, folder: &Path, value: i64, timeout: Duration, row_errors: Option<RowErrors>) -> Exchange {
    let signature = Signature { row_errors, ..signature() };
    let remote = Remote::parse(&format!("unix:{}", folder.join("flight.sock").display()), Dialect::PutGet).unwrap();
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote, credentials: Credentials::default() },
        transport: TransportName::Auto,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: timeout,
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    let mut builder = BatchBuilder::new(&signature);
    let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
    column.append_value(value);
    builder.finish_row();
    exchange.send(builder.finish_batch());
    exchange
}

fn answer(mut exchange: Exchange) -> Result<i64> {
    Ok(exchange.receive(&PlainHost)?.columns.column(0).as_primitive::<Int64Type>().value(0))
}

#[test]
fn who_comes_after_a_cancelled_call_gets_their_own_rows() {
    let (server, client) = (Server::new(), Client::start().unwrap());
    server.start();
    let folder = server.folder.path();
    let cancelled = send(&client, folder, 1, Duration::from_secs(20));
    server.runtime.block_on(server.stored.first_begins.notified());
    drop(cancelled);
    let next = send(&client, folder, 100, Duration::from_secs(20));
    server.end_first_call();
    assert_eq!(answer(next).unwrap(), 101);
    assert_eq!(answer(send(&client, folder, 200, Duration::from_secs(20))).unwrap(), 201);
}

#[test]
fn who_comes_after_a_session_that_has_ended_gets_their_own_rows() {
    // Errors of rows are asked for batch by batch, in the time of the whole.
    [None, Some(RowErrors::Once), Some(RowErrors::Again)].into_iter().for_each(come_after_a_session_that_has_ended);
}

fn come_after_a_session_that_has_ended(row_errors: Option<RowErrors>) {
    let (server, client) = (Server::new(), Client::start().unwrap());
    server.start();
    let folder = server.folder.path();
    let (ended, start) = (Client::start().unwrap(), Instant::now());
    let timeout = Duration::from_secs(3);
    let cut_off = send_call(&ended, folder, 1, timeout, row_errors);
    server.runtime.block_on(server.stored.first_begins.notified());
    drop(cut_off);
    ended.stop();
    let next = send(&client, folder, 100, Duration::from_secs(20));
    // That is too far off.
    let error = answer(send(&client, folder, 100, timeout / 4)).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error:?}");
    assert!(error.detail().is_some_and(|detail| detail.contains("cut off")), "{error:?}");
    server.end_first_call();
    assert_eq!(answer(next).unwrap(), 101);
    assert!(start.elapsed() >= timeout / 2, "{:?}", start.elapsed());
}

#[test]
fn who_comes_after_a_call_that_has_failed_need_not_wait() {
    let (server, client, start) = (Server::new(), Client::start().unwrap(), Instant::now());
    let folder = server.folder.path();
    let timeout = Duration::from_secs(60);
    // There is no server yet.
    let error = answer(send(&client, folder, 1, timeout)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error:?}");
    server.start();
    let error = answer(send(&client, folder, -1, timeout)).unwrap_err();
    assert_eq!((error.kind(), error.message().contains("below zero")), (Kind::UserCode, true), "{error:?}");
    server.stored.first_ended.add_permits(1);
    assert_eq!(answer(send(&client, folder, 1, timeout)).unwrap(), 2);
    assert!(start.elapsed() < timeout / 4, "{:?}", start.elapsed());
}
