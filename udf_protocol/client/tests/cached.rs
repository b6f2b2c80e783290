//! Results that are kept: what is sent and what is not, whatever the store does.

mod support;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    send, socket_with,
};
use support::{Answers, Calls, MockContainer, Script, reply, schema_of};
use udf_client::cache::message::{CallCost, Key, Request, Response, Results};
use udf_client::cache::{CacheUse, socket_beside};
use udf_client::channel::Channel;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::inbox::Reply;
use udf_client::trace::Observation;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

/// What a store does with a request, given what it holds; none ends the connection.
type Behaviour = dyn Fn(&mut HashMap<Key, Vec<u8>>, Request) -> Option<Vec<u8>> + Send + Sync;

/// A server that multiplies by ten and fails at negative values, and a store beside it.
struct Stage {
    client: Client,
    endpoint: Endpoint,
    /// The values that it was called with, batch by batch.
    called: Arc<Mutex<Vec<Vec<Option<i64>>>>>,
    folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new() -> Stage {
        let called = Arc::<Mutex<Vec<Vec<Option<i64>>>>>::default();
        let noted = called.clone();
        let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
            let noted = noted.clone();
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&signature())));
                while let Some((batch, metadata)) = calls.next().await {
                    let values: Vec<_> = batch.column(0).as_primitive::<Int64Type>().iter().collect();
                    noted.lock().unwrap().push(values.clone());
                    if let Some(row) = values.iter().position(|value| value.is_some_and(|value| value < 0)) {
                        let error = format!(r#""kind": "user_code", "message": "no", "row": {row}"#);
                        let said = metadata.replace('}', &format!(", \"error\": {{{error}}}}}"));
                        let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(said)));
                        return;
                    }
                    let results = values.iter().map(|value| value.map(|value| value * 10)).collect();
                    // 10 us per row, as the server says.
                    let said = metadata.replace('}', &format!(", \"micros\": {}}}", values.len() * 10));
                    let _ = answers.send(Ok(reply(&signature(), results, &said)));
                }
            })
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mock = MockContainer { hello: Some(HELLO.to_string()), signature: signature(), script };
        let endpoint = Endpoint::FlightTcp(runtime.block_on(mock.start_tcp()));
        let (client, folder) = (Client::start().unwrap(), tempfile::tempdir().unwrap());
        Stage { client, endpoint, called, folder, _runtime: runtime }
    }

    /// Where the manager would listen.
    fn manager(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    fn socket(&self) -> PathBuf {
        socket_beside(&self.manager())
    }

    fn listen(&self) -> OwnedFd {
        let _ = std::fs::remove_file(self.socket());
        std::fs::write(self.manager(), "").unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(self.socket()).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        listener
    }

    /// A store that answers as `behaviour` says; how many requests it got.
    fn store(
        &self,
        behaviour: impl Fn(&mut HashMap<Key, Vec<u8>>, Request) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Arc<AtomicUsize> {
        let listener = self.listen();
        let asked = Arc::new(AtomicUsize::new(0));
        let (behaviour, held): (Arc<Behaviour>, Arc<Mutex<HashMap<_, _>>>) = (Arc::new(behaviour), Arc::default());
        let counted = asked.clone();
        std::thread::spawn(move || {
            while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
                let (behaviour, held, counted) = (behaviour.clone(), held.clone(), counted.clone());
                std::thread::spawn(move || {
                    let channel = Channel::from(socket);
                    while let Ok(Some(bytes)) = channel.receive() {
                        counted.fetch_add(1, SeqCst);
                        let answer = behaviour(&mut held.lock().unwrap(), Request::from_bytes(&bytes).unwrap());
                        match answer {
                            Some(answer) if channel.send(&answer).is_ok() => {}
                            _ => return,
                        }
                    }
                });
            }
        });
        asked
    }

    fn usage(&self) -> CacheUse {
        let (max_age, timeout) = (Some(Duration::from_secs(60)), Duration::from_secs(5));
        CacheUse { socket: self.socket(), max_age, timeout, is_forced: true }
    }

    fn open(&self, volatility: Volatility, usage: CacheUse) -> Exchange {
        let call = Call {
            target: Target::Remote { remote: self.endpoint.clone().into(), credentials: Credentials::default() },
            transport: TransportName::Flight,
            signature: signature(),
            volatility,
            batch_timeout: Duration::from_secs(20),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        };
        self.client.open_with_cache(Arc::new(call), Observation::default(), Some(usage))
    }

    /// Replies to batches of these values, all of which are sent first, and the values that the server was called with.
    fn ask_with(&self, usage: CacheUse, batches: &[&[Option<i64>]]) -> (Vec<Result<Reply>>, Vec<Vec<Option<i64>>>) {
        self.called.lock().unwrap().clear();
        let mut exchange = self.open(Volatility::Immutable, usage);
        let mut builder = BatchBuilder::new(&signature());
        batches.iter().for_each(|values| exchange.send(batch_of(&mut builder, values)));
        let replies = batches.iter().map(|_| exchange.receive(&PlainHost)).collect();
        (replies, self.called.lock().unwrap().clone())
    }

    /// As [`Stage::ask_with`], whose results are checked; how many of each batch were there already.
    fn ask(&self, batches: &[&[Option<i64>]]) -> (Vec<usize>, Vec<Vec<Option<i64>>>) {
        let (replies, called) = self.ask_with(self.usage(), batches);
        let cached = replies.into_iter().zip(batches).zip(0..).map(|((reply, values), number)| {
            let reply = reply.unwrap();
            let results: Vec<_> = reply.columns.column(0).as_primitive::<Int64Type>().iter().collect();
            let expected: Vec<_> = values.iter().map(|value| value.map(|value| value * 10)).collect();
            assert_eq!((results, reply.number, reply.is_last), (expected, number, true));
            reply.cached
        });
        (cached.collect(), called)
    }
}

fn batch_of(builder: &mut BatchBuilder, values: &[Option<i64>]) -> CallBatch {
    for value in values {
        let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
        column.append_option(*value);
        builder.finish_row();
    }
    builder.finish_batch()
}

/// A store as it should be.
fn honest(held: &mut HashMap<Key, Vec<u8>>, request: Request) -> Option<Vec<u8>> {
    let response = match request {
        Request::LookUp { keys, .. } => {
            let mut results = Results::default();
            keys.iter().for_each(|key| results.push(held.get(key).map(Vec::as_slice)));
            Response::Found { generation: 7, cost: CallCost::default(), results }
        }
        Request::Insert { generation, keys, results, .. } => {
            assert_eq!(generation, 7);
            for (key, result) in keys.into_iter().zip(results.iter()) {
                held.insert(key, result.unwrap().to_vec());
            }
            Response::Done
        }
        other => panic!("{other:?}"),
    };
    Some(response.to_bytes())
}

#[test]
fn only_rows_that_are_not_there_are_sent_and_results_keep_their_order() {
    let stage = Stage::new();
    stage.store(honest);
    let first: &[_] = &[Some(1), None, Some(3)];
    assert_eq!(stage.ask(&[first]), (vec![0], vec![first.to_vec()]));
    // Another exchange, another order, and rows between that are not there.
    let second: &[_] = &[Some(3), Some(4), Some(1), Some(3), None, Some(5)];
    assert_eq!(stage.ask(&[second]), (vec![4], vec![vec![Some(4), Some(5)]]));
    // All, nothing and some, in one exchange.
    let third: &[&[_]] = &[second, &[Some(6)], first, &[], &[Some(7), Some(1)], first];
    let (cached, called) = stage.ask(third);
    assert_eq!(cached, [6, 0, 3, 0, 1, 3]);
    assert_eq!(called, [vec![Some(6)], vec![], vec![Some(7)]]);
}

#[test]
fn errors_name_the_row_of_the_batch_and_are_not_kept() {
    let stage = Stage::new();
    stage.store(honest);
    stage.ask(&[&[Some(1), Some(2)]]);
    for _ in 0..2 {
        let (replies, called) = stage.ask_with(stage.usage(), &[&[Some(1), Some(3), Some(2), Some(-1), Some(1)]]);
        let error = replies[0].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.row()), (Kind::UserCode, Some(3)));
        assert_eq!(called, [vec![Some(3), Some(-1)]]);
    }
}

#[test]
fn a_store_that_is_missing_or_broken_changes_nothing_but_time() {
    let values: &[_] = &[Some(1), None, Some(3)];
    let found = |results: Results| Response::Found { generation: 7, cost: CallCost::default(), results }.to_bytes();
    let of = move |values: &[Option<&[u8]>]| {
        let mut results = Results::default();
        values.iter().for_each(|value| results.push(*value));
        found(results)
    };
    let garbage: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![9; 100],
        vec![0; 100_000],
        Response::Done.to_bytes(),
        Response::Counters(Vec::new()).to_bytes(),
        of(&[None, None]),
        of(&[None; 4]),
        // Results without their row's tag.
        of(&[Some(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), None, None]),
        of(&[Some(&[0; 16]), Some(&[]), None]),
    ];
    for answer in garbage {
        let stage = Stage::new();
        let asked = stage.store(move |_, _| Some(answer.clone()));
        assert_eq!(stage.ask(&[values]), (vec![0], vec![values.to_vec()]));
        // It is not asked again for a while, nor given anything.
        stage.ask(&[values]);
        assert_eq!(asked.load(SeqCst), 1);
    }
    // Nobody listens.
    assert_eq!(Stage::new().ask(&[values]), (vec![0], vec![values.to_vec()]));
    // It ends the connection, each time.
    let stage = Stage::new();
    stage.store(|_, _| None);
    assert_eq!(stage.ask(&[values]), (vec![0], vec![values.to_vec()]));
}

#[test]
fn a_store_that_gives_other_rows_results_is_not_believed() {
    for turns in [1, 2] {
        let stage = Stage::new();
        stage.store(move |held, request| match request {
            Request::LookUp { mut keys, timeout, .. } if !held.is_empty() => {
                keys.rotate_left(turns);
                honest(held, Request::LookUp { namespace: [0; 16], max_age: None, timeout, keys })
            }
            request => honest(held, request),
        });
        let values: &[_] = &[Some(1), Some(2), Some(3)];
        stage.ask(&[values]);
        assert_eq!(stage.ask(&[values]), (vec![0], vec![values.to_vec()]));
    }
}

#[test]
fn values_that_are_changed_or_cut_off_are_not_taken() {
    for (position, length) in [(8, 17), (0, 17), (8, 9), (8, 18), (8, 8)] {
        let stage = Stage::new();
        stage.store(move |held, request| {
            let is_look_up = matches!(request, Request::LookUp { .. });
            if is_look_up {
                for value in held.values_mut() {
                    value[position] = value[position].wrapping_add(7);
                    value.resize(length, 0);
                }
            }
            honest(held, request)
        });
        let values: &[_] = &[Some(1), Some(2)];
        stage.ask(&[values]);
        assert_eq!(stage.ask(&[values]), (vec![0], vec![values.to_vec()]), "{position} {length}");
    }
}

#[test]
fn a_store_that_hangs_costs_a_deadline_once() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let start = Instant::now();
    let usage = CacheUse { timeout: Duration::from_millis(50), ..stage.usage() };
    for _ in 0..20 {
        let (replies, called) = stage.ask_with(usage.clone(), &[&[Some(1)], &[Some(2)]]);
        assert!(replies.iter().all(Result::is_ok) && called.len() == 2);
    }
    // With a deadline for each of 40 batches it would have taken two seconds more than the calls.
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_store_that_is_killed_between_look_ups_is_found_again() {
    let stage = Stage::new();
    stage.store(honest);
    let values: &[_] = &[Some(1), Some(2)];
    stage.ask(&[values]);
    // The old one's connections end, and its results are gone.
    let asked = AtomicUsize::new(0);
    stage.store(move |held, request| if asked.fetch_add(1, SeqCst) == 0 { None } else { honest(held, request) });
    let again = Stage { client: Client::start().unwrap(), ..stage };
    assert_eq!(again.ask(&[values]), (vec![0], vec![values.to_vec()]));
}

#[test]
fn an_answer_that_is_no_message_is_not_taken() {
    let stage = Stage::new();
    let listener = stage.listen();
    std::thread::spawn(move || {
        while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
            let mut buffer = [0; 1000];
            if recv(&socket, &mut buffer, RecvFlags::empty()).is_ok() {
                // Says that a sealed memory comes along.
                let _ = send(&socket, &[1, 8, 0, 0, 0, 0, 0, 0, 0], SendFlags::NOSIGNAL);
            }
        }
    });
    let values: &[_] = &[Some(1), Some(2)];
    assert_eq!(stage.ask(&[values]), (vec![0], vec![values.to_vec()]));
}

#[test]
fn what_may_change_is_never_looked_up() {
    let stage = Stage::new();
    let asked = stage.store(honest);
    let run = |volatility, usage| {
        let mut exchange = stage.open(volatility, usage);
        exchange.send(batch_of(&mut BatchBuilder::new(&signature()), &[Some(1)]));
        assert_eq!(exchange.receive(&PlainHost).unwrap().cached, 0);
    };
    run(Volatility::Volatile, stage.usage());
    run(Volatility::Stable, stage.usage());
    // A server elsewhere may be another one tomorrow.
    run(Volatility::Immutable, CacheUse { max_age: None, ..stage.usage() });
    assert_eq!(asked.load(SeqCst), 0);
    run(Volatility::Immutable, stage.usage());
    assert!(asked.load(SeqCst) > 0);
}

#[test]
fn a_store_of_another_user_than_the_managers_is_not_asked() {
    let values: &[_] = &[Some(1)];
    let stage = Stage::new();
    let asked = stage.store(honest);
    std::fs::remove_file(stage.manager()).unwrap();
    stage.ask(&[values]);
    assert_eq!(asked.load(SeqCst), 0);
    // Only root can give files away.
    if nix::unistd::Uid::effective().is_root() {
        let stage = Stage::new();
        let asked = stage.store(honest);
        std::os::unix::fs::lchown(stage.manager(), Some(1), None).unwrap();
        stage.ask(&[values]);
        assert_eq!(asked.load(SeqCst), 0);
    }
}

#[test]
fn what_the_engine_abandons_is_in_flight() {
    let stage = Stage::new();
    stage.store(honest);
    stage.ask(&[&[Some(1), Some(2)]]);
    let mut exchange = stage.open(Volatility::Immutable, stage.usage());
    let mut builder = BatchBuilder::new(&signature());
    assert_eq!(exchange.in_flight(), 0);
    // All of it is there, so that nothing is sent. An engine that wants another batch's results instead has to know.
    exchange.send(batch_of(&mut builder, &[Some(1), Some(2)]));
    assert_eq!(exchange.in_flight(), 1);
    exchange.send(batch_of(&mut builder, &[Some(1), Some(3)]));
    assert_eq!(exchange.in_flight(), 2);
    assert_eq!(exchange.receive(&PlainHost).unwrap().cached, 2);
    assert_eq!(exchange.receive(&PlainHost).unwrap().cached, 1);
    assert_eq!(exchange.in_flight(), 0);
}

#[test]
fn dear_calls_wait_for_results_that_come_late() {
    let stage = Stage::new();
    let asked = AtomicUsize::new(0);
    stage.store(move |held, request| match request {
        Request::LookUp { .. } => {
            if asked.fetch_add(1, SeqCst) > 0 {
                std::thread::sleep(Duration::from_millis(500));
            }
            let answer = Response::from_bytes(&honest(held, request)?)?;
            let Response::Found { generation, results, .. } = answer else { return None };
            // 400 ms per row, of which a tenth may be waited for.
            let cost = CallCost { ns: 400_000_000, known_by: 10_000 };
            Some(Response::Found { generation, cost, results }.to_bytes())
        }
        request => honest(held, request),
    });
    let usage = CacheUse { timeout: Duration::from_millis(200), ..stage.usage() };
    let values: Vec<_> = (1..=20).map(Some).collect();
    for (cached, called) in [(0, vec![values.clone()]), (20, vec![])] {
        let (replies, found) = stage.ask_with(usage.clone(), &[&values]);
        assert_eq!((replies[0].as_ref().unwrap().cached, found), (cached, called));
    }
}

#[test]
fn calls_that_are_known_to_take_long_are_sent_in_parts() {
    let stage = Stage::new();
    stage.store(|held, request| match request {
        Request::LookUp { .. } => {
            let answer = Response::from_bytes(&honest(held, request)?)?;
            let Response::Found { generation, results, .. } = answer else { return None };
            // 400 ms per row.
            let cost = CallCost { ns: 400_000_000, known_by: 10_000 };
            Some(Response::Found { generation, cost, results }.to_bytes())
        }
        request => honest(held, request),
    });
    let values: Vec<_> = (1..=300).map(Some).collect();
    let parts: Vec<_> = values.chunks(128).map(<[_]>::to_vec).collect();
    assert_eq!(stage.ask(&[&values]), (vec![0], parts));
    // An error in a later part has the row of the batch.
    let mut others: Vec<_> = (301..=600).map(Some).collect();
    others[299] = Some(-1);
    let (replies, _) = stage.ask_with(stage.usage(), &[&others]);
    assert_eq!(replies[0].as_ref().unwrap_err().row(), Some(299));
    assert_eq!(stage.ask(&[&values]), (vec![300], vec![]));
}
