//! Answers that lie, fail, or do not come.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use udf_types::signature::Volatility;
use udf_types::{Kind, Origin};

use crate::stage::{Asked, Peer, Stage, batches, receive};

#[test]
fn lies_are_errors() {
    type Lie = fn(&mut Peer, &Asked);
    let lies: [(&str, Kind, Lie); 25] = [
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 24], "aliases": [1]}), &[0; 24]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 4, 8], "aliases": [1]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, u64::MAX - 7, 16], "aliases": [1]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 8, u64::MAX - 7], "aliases": [1, 1, 9]}), &[]);
        }),
        ("segment is too short", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(
                &json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, 0, 16]}),
                &[],
            );
        }),
        ("larger than 1 GiB", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(&json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, 1_u64 << 62, 1_u64 << 62]}), &[]);
        }),
        ("larger than 1 GiB", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(
                &json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, u64::MAX, 16]}),
                &[],
            );
        }),
        ("not the one that was offered", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(&json!({"rows": 2, "segment": asked.header["segment"], "buffers": [0, 0, 0, 16]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16]}), &[0; 8]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 4, 16]}), &[0; 32]);
        }),
        ("has 8 bytes, not 16", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 8]}), &[0; 8]);
        }),
        ("too many rows", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": u64::MAX / 4, "buffers": [0, 0, 0, 8]}), &[0; 8]);
        }),
        ("fewer buffers", Kind::BadResult, |peer, _| peer.write_columns(&json!({"rows": 2, "buffers": [0, 0]}), &[])),
        ("fewer buffers", Kind::BadResult, |peer, _| peer.write_columns(&json!({"rows": 2, "buffers": [0]}), &[])),
        ("more buffers", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16, 0, 16]}), &[0; 16]);
        }),
        ("a dictionary that was not asked for", Kind::ProtocolViolation, |peer, asked| {
            assert_eq!(asked.header.get("may_encode"), None);
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16], "dictionaries": [0, 1]}), &[0; 16]);
        }),
        ("3 rows", Kind::ProtocolViolation, |peer, _| {
            peer.write_columns(&json!({"rows": 3, "buffers": [0, 0, 0, 24]}), &[0; 24]);
        }),
        ("another batch", Kind::ProtocolViolation, |peer, _| {
            peer.write_columns(&json!({"batch": 9, "rows": 2, "buffers": [0, 0, 0, 16]}), &[0; 16]);
        }),
        ("header is cut off", Kind::ProtocolViolation, |peer, _| {
            peer.write("200 OK", "application/vnd.transship.columns", &[255, 255, 255, 255, b'{']);
        }),
        ("not of the form", Kind::ProtocolViolation, |peer, _| {
            peer.write("200 OK", "application/json", b"{\"columns\": [[1, 2]]}");
        }),
        ("HTTP status 500", Kind::ProtocolViolation, |peer, _| peer.write("500 Oh", "text/html", b"<html>")),
        // A gateway's words.
        ("HTTP status 401", Kind::NotAllowed, |peer, _| peer.write("401 Unauthorized", "text/html", b"<html>")),
        ("not HTTP", Kind::ProtocolViolation, |peer, _| peer.write_raw(b"\x00\x01\x02\x03 hello\r\n\r\n")),
        ("its length", Kind::ProtocolViolation, |peer, _| {
            peer.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
        }),
        ("head is too long", Kind::ProtocolViolation, |peer, _| {
            peer.write_raw(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(40_000)).as_bytes());
        }),
    ];
    for (fact, kind, lie) in lies {
        let stage = Stage::new(move |mut peer| {
            if let Some(asked) = peer.read() {
                lie(&mut peer, &asked);
                // The connection stays, so that the answer alone says what is wrong.
                let _ = peer.read();
            }
        });
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 2).remove(0));
        let error = receive(&mut exchange).unwrap_err();
        assert_eq!(error.kind(), kind, "{fact}: {error}");
        let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
        assert!(said.contains(fact), "{fact}: {said}");
        assert!(said.contains("\"f\""), "{said}");
    }
}

#[test]
fn a_batch_that_a_gateway_lost_is_sent_again_unless_it_must_not() {
    for (volatility, connections) in [(Volatility::Immutable, 2), (Volatility::Volatile, 1)] {
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = count.clone();
        let stage = Stage::new(move |mut peer| {
            let is_first = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            while let Some(asked) = peer.read() {
                match is_first {
                    true => peer.write("502 Bad Gateway", "text/html", b"<html>"),
                    false => peer.answer(&asked, json!({})),
                }
            }
        });
        let mut exchange = stage.open(volatility);
        exchange.send(batches(1, 2).remove(0));
        match receive(&mut exchange) {
            Ok(values) => assert_eq!((volatility, values), (Volatility::Immutable, vec![0, 10])),
            Err(error) => {
                assert_eq!((volatility, error.origin()), (Volatility::Volatile, Origin::Container), "{error}")
            }
        }
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), connections);
    }
}

#[test]
fn more_answers_than_calls_are_an_error() {
    let stage = Stage::new(|mut peer| {
        let asked = peer.read().unwrap();
        peer.answer(&asked, json!({}));
        std::thread::sleep(Duration::from_millis(100));
        peer.answer(&asked, json!({}));
        let _ = peer.read();
    });
    let mut exchange = stage.open(Volatility::Volatile);
    let mut sent = batches(2, 2).into_iter();
    exchange.send(sent.next().unwrap());
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    std::thread::sleep(Duration::from_millis(200));
    exchange.send(sent.next().unwrap());
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::ProtocolViolation);
}

#[test]
fn a_handlers_exception_names_its_row_and_later_batches_are_answered() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            if asked.header["batch"] == json!(1) {
                let error = json!({"error": {"kind": "user_code", "message": "ValueError: no", "row": 1}});
                peer.write("500 Internal Server Error", "application/json", error.to_string().as_bytes());
            } else {
                peer.answer(&asked, json!({}));
            }
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    batches(3, 2).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    let error = receive(&mut exchange).unwrap_err();
    assert_eq!((error.kind(), error.row()), (Kind::UserCode, Some(1)));
}

#[test]
fn a_server_that_dies_is_replaced_unless_the_function_is_volatile() {
    for (volatility, is_answered) in [(Volatility::Immutable, true), (Volatility::Volatile, false)] {
        let lives = std::sync::atomic::AtomicUsize::new(0);
        let stage = Stage::new(move |mut peer| {
            let is_first = lives.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            while let Some(asked) = peer.read() {
                if is_first && asked.header["batch"] == json!(1) {
                    return;
                }
                peer.answer(&asked, json!({}));
            }
        });
        let mut exchange = stage.open(volatility);
        batches(3, 1).into_iter().for_each(|batch| exchange.send(batch));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        let second = receive(&mut exchange);
        if is_answered {
            assert_eq!(second.unwrap(), [10]);
            assert_eq!(receive(&mut exchange).unwrap(), [20]);
            assert_eq!(exchange.retries(), 1);
        } else {
            let error = second.unwrap_err();
            assert_eq!(error.kind(), Kind::ContainerFailed);
            assert!(error.detail().unwrap().contains("exited with status 3"), "{error}");
        }
    }
}
