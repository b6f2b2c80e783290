//! What travels: segments, columns in place, references and dictionaries.

use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_buffer::ScalarBuffer;
use serde_json::json;
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::outbox::Outgoing;
use udf_codec::batch::CallBatch;
use udf_types::signature::{Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

use crate::stage::{Asked, Stage, batches, count_files, receive, signature};

#[test]
fn batches_travel_through_segments_before_the_first_is_answered() {
    let stage = Stage::new(|mut peer| {
        // All have come on one connection before any is answered.
        let asked: Vec<Asked> = (0..3).map_while(|_| peer.read()).collect();
        let names: std::collections::HashSet<_> =
            asked.iter().map(|asked| asked.header["segment"].to_string()).collect();
        assert_eq!(names.len(), 3);
        asked.iter().for_each(|asked| peer.answer(asked, json!({"micros": 5})));
        // A segment is used again once its batch was answered.
        while let Some(asked) = peer.read() {
            assert!(names.contains(&asked.header["segment"].to_string()));
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    let mut sent = batches(6, 1000).into_iter();
    sent.by_ref().take(3).for_each(|batch| exchange.send(batch));
    let expected = |number: i64| (number * 1000..number * 1000 + 1000).map(|value| value * 10).collect::<Vec<_>>();
    for number in 0..3 {
        assert_eq!(receive(&mut exchange).unwrap(), expected(number));
    }
    assert_eq!(exchange.transport(), Some(TransportName::Shm));
    for (number, batch) in (3..).zip(sent) {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), expected(number));
    }
    assert_eq!(count_files(&stage.segments()), 6);
    let segments = stage.segments();
    drop(exchange);
    stage.client.stop();
    assert_eq!(count_files(&segments), 0);
}

#[test]
fn segments_that_a_handler_keeps_are_not_written_again() {
    let stage = Stage::new(|mut peer| {
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        while let Some(asked) = peer.read() {
            let name = asked.header["segment"].as_str().unwrap().to_string();
            let file = peer.segments.join(&name);
            assert!(kept.iter().all(|(other, _)| *other != name));
            kept.push((name, std::fs::read(file).unwrap()));
            peer.answer(&asked, json!({"retained": true}));
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    for batch in batches(3, 4) {
        exchange.send(batch);
        receive(&mut exchange).unwrap();
    }
}

#[test]
fn segments_of_calls_that_failed_are_not_written_again() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let noted = names.clone();
    let stage = Stage::new(move |mut peer| {
        while let Some(asked) = peer.read() {
            noted.lock().unwrap().push(asked.header["segment"].to_string());
            match asked.values[0] {
                20 => peer.write(
                    "500 Internal Server Error",
                    "application/json",
                    br#"{"error": {"kind": "user_code", "message": "20 is bad"}}"#,
                ),
                _ => peer.answer(&asked, json!({})),
            }
        }
    });
    let _ = std::os::unix::fs::chown(stage.folder.path().join("http.sock"), Some(65534), None);
    for values in [[10, 11, 20], [30, 31, 20], [40, 41, 42]] {
        let mut exchange = stage.open(Volatility::Volatile);
        for (number, value) in values.into_iter().enumerate() {
            let answer = send_in_place(&mut exchange, number, value);
            assert_eq!(answer.ok(), (value != 20).then(|| vec![10 * value, 10 * value + 10, 10 * value + 20]));
        }
    }
    // The handler may have kept what it failed on, and does not say so.
    let names = names.lock().unwrap();
    assert!(!names[3..].contains(&names[2]) && !names[6..].contains(&names[5]), "{names:?}");
}

/// The answer to a batch of three values from `first` on, in memory of the exchange's own.
fn send_in_place(exchange: &mut Exchange, number: usize, first: i64) -> Result<Vec<i64>> {
    let mut writer = exchange.arena(1000);
    let values = [first, first + 1, first + 2];
    writer.bytes()[64..88].copy_from_slice(&values.map(i64::to_le_bytes).concat());
    let arena = writer.finish();
    let column = Int64Array::new(ScalarBuffer::new(arena.buffer().slice_with_length(64, 24), 0, 3), None);
    let mut batch = batches(number + 1, 3).remove(number);
    batch.columns = RecordBatch::try_new(batch.columns.schema(), vec![Arc::new(column)]).unwrap();
    exchange.send(Outgoing { batch, arena: Some(arena) });
    receive(exchange)
}

#[test]
fn columns_that_were_written_in_place_are_not_copied() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            let more = json!({"retained": asked.values.first() == Some(&30)});
            peer.answer(&asked, more);
        }
    });
    // Only where the server is another user, which root alone can pretend.
    let another = std::os::unix::fs::chown(stage.folder.path().join("http.sock"), Some(65534), None);
    let in_place = usize::from(another.is_ok());
    let mut exchange = stage.open(Volatility::Volatile);
    // Before the server was reached, the memory is the process's own, and copied.
    assert_eq!(send_in_place(&mut exchange, 0, 10).unwrap(), [100, 110, 120]);
    assert_eq!(count_files(&stage.segments()), 2);
    for (number, first) in [(1, 20), (2, 30), (3, 40), (4, 50)] {
        assert_eq!(
            send_in_place(&mut exchange, number, first).unwrap(),
            [10 * first, 10 * first + 10, 10 * first + 20]
        );
        // The third was kept by the server, so the fourth went through another.
        assert_eq!(count_files(&stage.segments()), 2 + in_place, "{number}");
    }
    let segments = stage.segments();
    drop(exchange);
    stage.client.release();
    stage.client.stop();
    assert_eq!(count_files(&segments), 0);
}

#[test]
fn small_batches_go_with_the_request_where_that_may_be_chosen() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header.get("segment").is_some(), asked.values.len() > 4096);
            assert_eq!(asked.header.get("reply_segment").is_some(), asked.values.len() > 4096);
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_over(TransportName::Auto, Volatility::Volatile);
    let mut send = |number: usize, rows: i64, files: usize| {
        exchange.send(batches(number + 1, rows).remove(number));
        let first = number as i64 * rows;
        assert_eq!(receive(&mut exchange).unwrap(), (first..first + rows).map(|value| value * 10).collect::<Vec<_>>());
        assert_eq!(count_files(&stage.segments()), files);
        assert_eq!(exchange.transport(), Some(TransportName::Shm));
    };
    send(0, 3, 0);
    send(1, 4096, 0);
    send(2, 4097, 2);
    send(3, 3, 2);
}

#[test]
fn data_goes_with_the_request_where_no_segment_can_be_made() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header.get("segment"), None);
            peer.answer(&asked, json!({}));
        }
    });
    std::fs::remove_dir(stage.segments()).unwrap();
    let mut exchange = stage.open(Volatility::Volatile);
    for (number, batch) in (0..).zip(batches(3, 2)) {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [number * 20, number * 20 + 10]);
    }
}

#[test]
fn results_that_are_arguments_come_back_as_references() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header["may_alias"], json!(true));
            // All values of the first batch; of the second all but the first.
            let cut = 8 * asked.header["batch"].as_u64().unwrap();
            let place = |i: usize| asked.header["buffers"][i].as_u64().unwrap();
            let buffers = json!([0, 0, place(2) + cut, place(3) - cut]);
            peer.write_columns(&json!({"rows": asked.values.len(), "buffers": buffers, "aliases": [1]}), &[]);
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    batches(2, 5).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 1, 2, 3, 4]);
    let error = receive(&mut exchange).unwrap_err();
    assert_eq!(error.kind(), Kind::BadResult);
    assert!(error.to_string().contains("has 32 bytes, not 40"), "{error}");
}

#[test]
fn texts_come_as_dictionaries_where_that_is_taken() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header["may_encode"], json!(true));
            // The second answer refers to a text that there is not.
            let last = asked.header["batch"].as_i64().unwrap() as u8 + 1;
            let header = json!({"rows": 3, "buffers": [0, 1, 8, 12, 24, 12, 40, 3], "dictionaries": [0, 2]});
            let mut data = [0; 43];
            (data[0], data[8], data[16], data[28], data[32]) = (0b101, 1, last, 1, 3);
            data[40..].copy_from_slice(b"abb");
            peer.write_columns(&header, &data);
        }
    });
    let signature = Signature { result: Type::Text, ..signature() };
    let mut exchange = stage.open_as(TransportName::Shm, Volatility::Volatile, signature);
    for batch in batches(2, 3) {
        exchange.send(CallBatch { takes_dictionaries: true, ..batch });
    }
    let reply = exchange.receive(&PlainHost).unwrap().columns;
    let texts = reply.column(0).as_dictionary::<Int32Type>().downcast_dict::<StringArray>().unwrap();
    assert_eq!(texts.into_iter().collect::<Vec<_>>(), [Some("bb"), None, Some("bb")]);
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::BadResult);
}
