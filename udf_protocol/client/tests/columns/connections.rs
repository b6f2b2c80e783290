//! Connections: whose thread waits on them, how long, and when one is not used again.

use std::io::BufRead;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;
use udf_client::dispatch::Call;
use udf_client::host::Host;
use udf_codec::batch::{AggregateStep, BatchBuilder, CallBatch};
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::{Kind, Result};

use crate::stage::{Asked, Stage, answer_all, batches, receive, signature, wait_until};

#[test]
fn batches_that_are_sent_one_by_one_stay_on_this_thread() {
    for transport in [TransportName::Auto, TransportName::Shm, TransportName::Socket] {
        let stage = Stage::of_server(true, answer_all);
        let mut exchange = stage.open_here(transport, Volatility::Volatile);
        for (number, batch) in (0..).zip(batches(50, 3)) {
            exchange.send(batch);
            let first = number * 3;
            assert_eq!(receive(&mut exchange).unwrap(), [first * 10, first * 10 + 10, first * 10 + 20]);
        }
        assert!(!exchange.may_be_nearer(), "{transport:?}");
        drop(exchange);
        // One lease has served them all, and one connection but for the first, which another thread may not have given back.
        let [leases, connections, ended] = stage.counts();
        assert!(leases == 1 && connections <= 2 && ended == 0, "{transport:?}: {:?}", stage.counts());
    }
}

#[test]
fn several_batches_move_to_the_clients_thread_and_keep_their_order() {
    let stage = Stage::of_server(true, answer_all);
    for round in 0..20 {
        let mut exchange = stage.open_here(TransportName::Shm, Volatility::Volatile);
        let count = 2 + round % 7;
        batches(count, 5).into_iter().for_each(|batch| exchange.send(batch));
        for number in 0..count as i64 {
            let expected: Vec<i64> = (number * 5..number * 5 + 5).map(|value| value * 10).collect();
            assert_eq!(receive(&mut exchange).unwrap(), expected);
        }
        assert!(exchange.may_be_nearer());
    }
}

#[test]
fn a_batch_moves_while_another_waits_for_its_answer() {
    // The first is answered only once the second has come.
    let stage = Stage::new(|mut peer| {
        while let Some(first) = peer.read() {
            if first.values.len() == 1 {
                peer.answer(&first, json!({}));
                continue;
            }
            let second = peer.read().unwrap();
            peer.answer(&first, json!({}));
            peer.answer(&second, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Socket, Volatility::Volatile);
    batches(2, 2).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    assert_eq!(receive(&mut exchange).unwrap(), [20, 30]);
}

#[test]
fn a_large_batch_moves_to_the_clients_thread() {
    let stage = Stage::new(answer_all);
    let mut exchange = stage.open_here(TransportName::Socket, Volatility::Volatile);
    let rows = 200_000;
    exchange.send(batches(1, rows).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), (0..rows).map(|value| value * 10).collect::<Vec<_>>());
    assert!(exchange.may_be_nearer());
}

#[test]
fn a_server_that_is_lost_is_asked_again_unless_the_function_is_volatile() {
    for (volatility, is_repeated) in [(Volatility::Immutable, true), (Volatility::Volatile, false)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let stage = Stage::of_server(true, move |mut peer| {
            while let Some(asked) = peer.read() {
                // It goes away in the midst of the second batch.
                if asked.values.len() > 1 && counted.fetch_add(1, Relaxed) == 0 {
                    return peer.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 50");
                }
                peer.answer(&asked, json!({}));
            }
        });
        let mut exchange = stage.open_here(TransportName::Shm, volatility);
        exchange.send(batches(1, 2).remove(0));
        let outcome = receive(&mut exchange);
        if is_repeated {
            assert_eq!(outcome.unwrap(), [0, 10]);
            assert_eq!((calls.load(Relaxed), exchange.retries()), (2, 1));
        } else {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), calls.load(Relaxed)), (Kind::ContainerFailed, 1));
            assert!(error.detail().unwrap().contains("exited with status 3"), "{error}");
        }
        drop(exchange);
        // What follows is answered.
        let mut next = stage.open(volatility);
        next.send(batches(1, 3).remove(0));
        assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
    }
}

#[test]
fn a_connection_on_which_a_request_was_answered_too_early_is_not_used_again() {
    const ROWS: i64 = 1 << 20;
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let stage = Stage::of_server(true, move |mut peer| {
        if is_first.swap(false, Relaxed) {
            // Far less than the request, the rest of which does not fit into the socket.
            peer.reader.read_exact(&mut [0; 100]).unwrap();
            let values = vec![0; ROWS as usize];
            peer.answer(&Asked { header: json!({"batch": 0}), values, offer: None }, json!({}));
            // It takes for that rest what comes next.
            std::thread::sleep(Duration::from_secs(5));
        }
        answer_all(peer);
    });
    for expected in [vec![0; ROWS as usize], vec![0, 10]] {
        let mut exchange = stage.open_over(TransportName::Socket, Volatility::Immutable);
        exchange.send(batches(1, expected.len() as i64).remove(0));
        assert!(receive(&mut exchange).unwrap() == expected);
        drop(exchange);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(stage.counts(), [1, 2, 0]);
}

#[test]
fn a_kept_connection_that_was_closed_meanwhile_is_not_used() {
    // Each connection is good for one request.
    let stage = Stage::of_server(true, |mut peer| {
        if let Some(asked) = peer.read() {
            peer.answer(&asked, json!({}));
        }
    });
    for number in 1..=20 {
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        // Its end is here before the next exchange begins.
        wait_until(|| stage.closed.load(Relaxed) == number);
    }
    assert_eq!(stage.counts()[0], 1);
    // Nor one that is closed between two batches of an exchange.
    let mut exchange = stage.open(Volatility::Volatile);
    for batch in batches(5, 1) {
        let expected = batch.number as i64 * 10;
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [expected]);
        wait_until(|| stage.closed.load(Relaxed) == stage.counts()[1]);
        // The client's thread, which is about to look, sees it then.
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((stage.counts(), exchange.retries()), ([1, 25, 0], 0));
}

#[test]
fn who_does_not_answer_in_time_is_left() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            if asked.values.len() == 2 {
                // In pieces that never make an answer.
                peer.write_raw(b"HTTP/1.1 200 OK\r\nServer: ");
                for _ in 0..100 {
                    peer.write_raw(b"x");
                    std::thread::sleep(Duration::from_millis(50));
                }
                return;
            }
            peer.answer(&asked, json!({}));
        }
    });
    drop(stage.open_here(TransportName::Shm, Volatility::Immutable));
    let call =
        Call { batch_timeout: Duration::from_millis(300), ..stage.call(TransportName::Shm, Volatility::Immutable) };
    let mut exchange = stage.client.open(Arc::new(call));
    let begun = Instant::now();
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::Timeout);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    drop(exchange);
    let mut next = stage.open(Volatility::Immutable);
    next.send(batches(1, 3).remove(0));
    assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
}

/// An engine whose user gives up.
struct Cancelled;

impl Host for Cancelled {
    fn wait(&self, _: std::os::fd::BorrowedFd<'_>, _: Duration) -> Result<()> {
        Err(udf_types::Error::new(Kind::Cancelled, "cancelled"))
    }
}

#[test]
fn a_wait_that_was_cancelled_ends_the_connection_and_nothing_else() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            // The client goes while this one is computed, and its answer is nobody's.
            std::thread::sleep(Duration::from_millis(if asked.values.len() == 2 { 200 } else { 0 }));
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(exchange.receive(&Cancelled).unwrap_err().kind(), Kind::Cancelled);
    drop(exchange);
    let mut next = stage.open(Volatility::Volatile);
    next.send(batches(1, 3).remove(0));
    assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
}

#[test]
fn the_groups_of_a_query_that_was_cancelled_are_forgotten() {
    let (asks, asked) = std::sync::mpsc::channel();
    // It answers nothing.
    let stage = Stage::new(move |mut peer| {
        let mut line = Vec::new();
        while peer.reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            if text.starts_with("POST ") || text.starts_with("DELETE ") {
                let _ = asks.send(text.into_owned());
            }
            line.clear();
        }
    });
    for transport in [TransportName::Socket, TransportName::Json] {
        let signature = Signature { kind: FunctionKind::Aggregate, ..signature() };
        let mut builder = BatchBuilder::new(&signature);
        (0..3).for_each(|column| builder.column(column).append_null());
        builder.finish_row();
        let batch = CallBatch { step: Some(AggregateStep::Accumulate), ..builder.finish_batch() };
        let mut exchange = stage.open_as(transport, Volatility::Immutable, signature);
        exchange.send(batch);
        let next = || asked.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(next().starts_with("POST "));
        drop(exchange);
        assert!(next().starts_with("DELETE /v1/exchanges/"));
    }
}

#[test]
fn an_answer_in_pieces_without_an_end_does_not_keep_the_engines_thread() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            if asked.values.len() == 2 {
                peer.write_raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n");
                // There is always another byte to read.
                while peer.stream.write_all(b" ").is_ok() {}
                return;
            }
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    let outcome = receive(&mut exchange);
    // Either it ended before the million bytes were there, or they are no reply.
    assert_eq!(outcome.unwrap_err().kind(), Kind::ProtocolViolation);
    assert!(exchange.may_be_nearer());
}

#[test]
fn a_client_ends_although_there_is_an_exchange() {
    let stage = Stage::of_server(true, answer_all);
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    stage.client.stop();
    // A large batch would be the thread's.
    exchange.send(batches(1, 100_000).remove(0));
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::Unreachable);
}

#[test]
fn a_connection_that_the_server_says_it_closes_gets_no_further_batch() {
    let faults = Arc::new(AtomicUsize::new(0));
    let counted = faults.clone();
    let stage = Stage::of_server(true, move |mut peer| {
        let Some(asked) = peer.read() else { return };
        let data: Vec<u8> = asked.values.iter().flat_map(|value| (value * 10).to_le_bytes()).collect();
        let header =
            json!({"batch": asked.header["batch"], "rows": asked.values.len(), "buffers": [0, 0, 0, data.len()]});
        let text = header.to_string();
        let mut body = (text.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(text.as_bytes());
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend_from_slice(&data);
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/vnd.transship.columns\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        peer.write_raw(&[head.as_bytes(), &body].concat());
        // It closes a little later.
        peer.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        counted.fetch_add(usize::from(peer.read().is_some()), Relaxed);
    });
    let mut exchange = stage.open(Volatility::Volatile);
    for (number, batch) in batches(5, 1).into_iter().enumerate() {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [10 * number as i64]);
    }
    drop(exchange);
    assert_eq!((faults.load(Relaxed), stage.counts()[1]), (0, 5));
}

#[test]
fn an_answer_that_came_while_the_engine_was_busy_is_not_late() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            peer.answer(&asked, json!({}));
        }
    });
    for _ in 0..5 {
        drop(stage.open_here(TransportName::Shm, Volatility::Immutable));
        let call = Call {
            batch_timeout: Duration::from_millis(1500),
            ..stage.call(TransportName::Shm, Volatility::Immutable)
        };
        let mut exchange = stage.client.open(Arc::new(call));
        let mut sent = batches(3, 1).into_iter();
        exchange.send(sent.next().unwrap());
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        exchange.send(sent.next().unwrap());
        std::thread::sleep(Duration::from_millis(1800));
        exchange.send(sent.next().unwrap());
        assert_eq!((receive(&mut exchange).unwrap(), receive(&mut exchange).unwrap()), (vec![10], vec![20]));
    }
}
