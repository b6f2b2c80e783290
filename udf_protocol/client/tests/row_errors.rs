//! Errors of single rows: from servers that report them, and from those that end an exchange at the first.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use support::{Answers, Calls, MockContainer, Script, reply, schema_of};
use tonic::Status;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::arrow_ipc::BatchEncoder;
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, ROW_ERRORS_KEY, RowErrors, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;
const HELLO_WITH_ROW_ERRORS: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"], "row_errors": true}"#;

fn plain() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

fn signature(volatility: Volatility) -> Signature {
    let row_errors = if volatility == Volatility::Volatile { RowErrors::Once } else { RowErrors::Again };
    Signature { row_errors: Some(row_errors), ..plain() }
}

/// How a handler fails that multiplies by ten, but raises on multiples of its divisor.
#[derive(Clone, Copy)]
enum Names {
    /// The row.
    Row,
    /// None, as one of whole columns.
    Nothing,
}

/// The results and errors of a batch.
type Answer = (Vec<Option<i64>>, Vec<Option<String>>);

/// A server of such a handler: with each value, how often it was run.
struct Stage {
    client: Client,
    endpoint: Endpoint,
    runs: Arc<Mutex<HashMap<i64, usize>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn of(hello: &str, script: Script) -> Stage {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mock = MockContainer { hello: Some(hello.to_string()), signature: plain(), script };
        let endpoint = Endpoint::FlightTcp(runtime.block_on(mock.start_tcp()));
        Stage { client: Client::start().unwrap(), endpoint, runs: Arc::default(), _runtime: runtime }
    }

    /// One that ends an exchange at the first error.
    fn raising(divisor: i64, names: Names) -> Stage {
        let runs = Arc::<Mutex<HashMap<i64, usize>>>::default();
        let counted = runs.clone();
        let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
            let runs = counted.clone();
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&plain())));
                while let Some((batch, metadata)) = calls.next().await {
                    assert_eq!(calls.asks_for(ROW_ERRORS_KEY), None);
                    let values: Vec<i64> = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                    let failed = values.iter().position(|value| value % divisor == 0);
                    for value in &values[..failed.map_or(values.len(), |row| row + 1)] {
                        *runs.lock().unwrap().entry(*value).or_default() += 1;
                    }
                    let Some(row) = failed else {
                        let results = values.iter().map(|value| Some(value * 10)).collect();
                        let _ = answers.send(Ok(reply(&plain(), results, &metadata)));
                        continue;
                    };
                    let mut error = format!(r#""kind": "user_code", "message": "no {}""#, values[row]);
                    match names {
                        Names::Row => error += &format!(r#", "row": {row}, "traceback": "Traceback""#),
                        Names::Nothing if values.len() > 1 => {
                            error = r#""kind": "user_code", "message": "something""#.to_string();
                        }
                        Names::Nothing => {}
                    }
                    let said = metadata.replace('}', &format!(", \"error\": {{{error}}}}}"));
                    let message = arrow_flight::FlightData::new().with_app_metadata(said);
                    let _ = answers.send(Ok(message));
                    return;
                }
            })
        });
        Stage { runs, ..Stage::of(HELLO, script) }
    }

    fn open(&self, volatility: Volatility) -> Exchange {
        self.client.open(Arc::new(Call {
            target: Target::Remote { remote: self.endpoint.clone().into(), credentials: Credentials::default() },
            transport: TransportName::Flight,
            signature: signature(volatility),
            volatility,
            batch_timeout: Duration::from_secs(20),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        }))
    }

    /// The results and errors of batches of these values.
    fn ask(&self, volatility: Volatility, batches: &[Vec<i64>]) -> Vec<Result<Answer>> {
        let mut exchange = self.open(volatility);
        let mut builder = BatchBuilder::new(&plain());
        batches.iter().for_each(|values| exchange.send(batch_of(&mut builder, values)));
        batches.iter().map(|_| exchange.receive(&PlainHost).map(|reply| read(&reply.columns))).collect()
    }

    fn most_runs(&self) -> usize {
        self.runs.lock().unwrap().values().copied().max().unwrap_or(0)
    }
}

fn batch_of(builder: &mut BatchBuilder, values: &[i64]) -> CallBatch {
    for value in values {
        let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
        column.append_value(*value);
        builder.finish_row();
    }
    builder.finish_batch()
}

fn read(columns: &RecordBatch) -> (Vec<Option<i64>>, Vec<Option<String>>) {
    let errors = columns.column(1).as_string::<i32>().iter().map(|error| error.map(str::to_string));
    (columns.column(0).as_primitive::<Int64Type>().iter().collect(), errors.collect())
}

fn expected(values: &[i64], divisor: i64) -> (Vec<Option<i64>>, Vec<Option<String>>) {
    let fails = |value: &i64| value % divisor == 0;
    let results = values.iter().map(|value| (!fails(value)).then_some(value * 10));
    (results.collect(), values.iter().map(|value| fails(value).then(|| format!("no {value}"))).collect())
}

#[test]
fn rows_without_errors_are_asked_again_where_that_may_be() {
    for names in [Names::Row, Names::Nothing] {
        for (divisor, batches) in [
            (4, vec![(0..13).collect::<Vec<i64>>(), vec![13, 14, 15], vec![16]]),
            (1, vec![(0..9).collect(), vec![9]]),
            (1000, vec![vec![1000], (1..40).collect(), (1960..2001).collect()]),
        ] {
            let stage = Stage::raising(divisor, names);
            for (answer, values) in stage.ask(Volatility::Immutable, &batches).into_iter().zip(&batches) {
                assert_eq!(answer.unwrap(), expected(values, divisor), "{divisor} {values:?}");
            }
            if matches!(names, Names::Row) {
                // Those before one that fails, and no others, are run again.
                assert!(stage.most_runs() <= 2, "{:?}", stage.runs);
            }
        }
    }
}

#[test]
fn rows_of_a_volatile_function_are_run_once() {
    for names in [Names::Row, Names::Nothing] {
        let stage = Stage::raising(3, names);
        let batches = [(0..10).collect::<Vec<i64>>(), (10..17).collect()];
        for (answer, values) in stage.ask(Volatility::Volatile, &batches).into_iter().zip(&batches) {
            assert_eq!(answer.unwrap(), expected(values, 3));
        }
        let runs = stage.runs.lock().unwrap().clone();
        assert_eq!(runs, (0..17).map(|value| (value, 1)).collect());
    }
}

#[test]
fn equal_rows_share_their_error() {
    let stage = Stage::raising(2, Names::Row);
    let values: Vec<i64> = (0..300).map(|row| row % 3).collect();
    let answer = stage.ask(Volatility::Stable, std::slice::from_ref(&values)).remove(0).unwrap();
    assert_eq!(answer, expected(&values, 2));
    assert!(stage.most_runs() <= 2, "{:?}", stage.runs);
}

#[test]
fn what_equal_rows_get_counts_as_memory_that_the_reply_needs() {
    let stage = Stage::raising(1, Names::Row);
    let mut exchange = stage.open(Volatility::Stable);
    exchange.send(batch_of(&mut BatchBuilder::new(&plain()), &vec![7; 50_000]));
    let reply = exchange.receive(&PlainHost).unwrap();
    assert_eq!((reply.columns.num_rows(), reply.repeated), (50_000, 49_999));
    // A number and an error for each.
    assert!(reply.bytes_needed > 50_000 * 12, "{}", reply.bytes_needed);
}

#[test]
fn a_server_that_reports_errors_of_rows_is_asked_to() {
    for (volatility, asked) in [(Volatility::Volatile, "once"), (Volatility::Stable, "again")] {
        let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&signature(volatility))));
                while let Some((batch, metadata)) = calls.next().await {
                    assert_eq!(calls.asks_for(ROW_ERRORS_KEY).as_deref(), Some(asked));
                    let values: Vec<i64> = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                    let (results, errors) = expected(&values, 3);
                    let columns: [(&str, ArrayRef); 2] =
                        [("f", Arc::new(Int64Array::from(results))), ("error", Arc::new(StringArray::from(errors)))];
                    let columns = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, it)| (name, it, true)));
                    let message = BatchEncoder::default().encode(&columns.unwrap()).unwrap();
                    let _ = answers.send(Ok(message.with_app_metadata(metadata)));
                }
            })
        });
        let stage = Stage::of(HELLO_WITH_ROW_ERRORS, script);
        let batches = [(0..10).collect::<Vec<i64>>(), vec![9]];
        for (answer, values) in stage.ask(volatility, &batches).into_iter().zip(&batches) {
            assert_eq!(answer.unwrap(), expected(values, 3));
        }
    }
}

#[test]
fn a_result_beside_an_error_is_refused() {
    for (results, is_taken) in [([Some(10), None], true), ([Some(10), Some(20)], false)] {
        let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&signature(Volatility::Stable))));
                while let Some((_, metadata)) = calls.next().await {
                    let errors = StringArray::from(vec![None, Some("no 2")]);
                    let columns: [(&str, ArrayRef); 2] =
                        [("f", Arc::new(Int64Array::from(results.to_vec()))), ("error", Arc::new(errors))];
                    let columns = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, it)| (name, it, true)));
                    let message = BatchEncoder::default().encode(&columns.unwrap()).unwrap();
                    let _ = answers.send(Ok(message.with_app_metadata(metadata)));
                }
            })
        });
        let stage = Stage::of(HELLO_WITH_ROW_ERRORS, script);
        match stage.ask(Volatility::Stable, &[vec![1, 2]]).remove(0) {
            Ok(answer) => assert!(is_taken, "{answer:?}"),
            Err(error) => assert!(!is_taken && error.kind() == Kind::ProtocolViolation, "{error}"),
        }
    }
}

#[test]
fn a_reply_without_the_errors_that_were_asked_for_is_refused() {
    let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&plain())));
            while let Some((_, metadata)) = calls.next().await {
                let _ = answers.send(Ok(reply(&plain(), vec![Some(10)], &metadata)));
            }
        })
    });
    let stage = Stage::of(HELLO_WITH_ROW_ERRORS, script);
    let error = stage.ask(Volatility::Stable, &[vec![1]]).remove(0).unwrap_err();
    assert_eq!(error.kind(), Kind::ProtocolViolation, "{error}");
}

/// A server that does something else about the value 5 than to answer.
fn stopping_at_5(what: impl Fn(&Answers, usize, &str) + Copy + Send + Sync + 'static) -> (Stage, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
        let runs = counted.clone();
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&plain())));
            while let Some((batch, metadata)) = calls.next().await {
                let values: Vec<i64> = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                if let Some(row) = values.iter().position(|value| *value == 5) {
                    runs.fetch_add(1, SeqCst);
                    return what(&answers, row, &metadata);
                }
                if let Some(row) = values.iter().position(|value| *value == 2) {
                    let error = format!(r#", "error": {{"kind": "user_code", "message": "no 2", "row": {row}}}}}"#);
                    let said = metadata.replace('}', &error);
                    let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(said)));
                    return;
                }
                let results = values.iter().map(|value| Some(value * 10)).collect();
                let _ = answers.send(Ok(reply(&plain(), results, &metadata)));
            }
        })
    });
    (Stage::of(HELLO, script), runs)
}

#[test]
fn other_errors_are_the_querys() {
    let (stage, _) = stopping_at_5(|answers, row, metadata| {
        let error = format!(r#", "error": {{"kind": "bad_result", "message": "no number", "row": {row}}}}}"#);
        let said = metadata.replace('}', &error);
        let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(said)));
    });
    for volatility in [Volatility::Stable, Volatility::Volatile] {
        let batches = [vec![1, 2, 3], (0..10).collect()];
        let mut answers = stage.ask(volatility, &batches);
        let error = answers.remove(1).unwrap_err();
        assert_eq!((error.kind(), error.row()), (Kind::BadResult, Some(5)), "{error}");
        let (results, errors) = answers.remove(0).unwrap();
        assert_eq!(results, [Some(10), None, Some(30)]);
        assert_eq!(errors, [None, Some("no 2".to_string()), None]);
    }
}

#[test]
fn what_need_not_be_the_handlers_is_no_error_of_a_row() {
    // A status in place of a message, and errors of no kind or of one that servers do not say.
    for said in [None, Some(r#""message": "no""#), Some(r#""kind": "timeout", "message": "no""#)] {
        let (stage, runs) = stopping_at_5(move |answers, row, metadata| {
            let _ = answers.send(match said {
                None => Err(Status::deadline_exceeded("too late")),
                Some(said) => {
                    let said = metadata.replace('}', &format!(r#", "error": {{{said}, "row": {row}}}}}"#));
                    Ok(arrow_flight::FlightData::new().with_app_metadata(said))
                }
            });
        });
        for volatility in [Volatility::Stable, Volatility::Volatile] {
            let before = runs.load(SeqCst);
            let error = stage.ask(volatility, &[vec![4, 5, 6]]).remove(0).unwrap_err();
            assert_eq!(error.kind(), Kind::UserCode, "{error}");
            assert_eq!(runs.load(SeqCst), before + 1);
        }
    }
}

#[test]
fn errors_of_many_rows_are_cut_short() {
    let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&plain())));
            if let Some((_, metadata)) = calls.next().await {
                let text = "é".repeat(5000);
                let said = format!(r#", "error": {{"kind": "user_code", "message": "{text}", "row": 0}}}}"#);
                let said = metadata.replace('}', &said);
                let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(said)));
            }
        })
    });
    let stage = Stage::of(HELLO, script);
    let (_, errors) = stage.ask(Volatility::Volatile, &[(0..400).collect()]).remove(0).unwrap();
    let lengths: Vec<usize> = errors.iter().map(|error| error.as_ref().unwrap().chars().count()).collect();
    assert_eq!(lengths[..256], [4096; 256]);
    assert_eq!(lengths[256..], [256; 144]);
}

#[test]
fn a_server_that_is_lost_is_asked_again_only_where_that_may_be() {
    for (volatility, most) in [(Volatility::Immutable, 3), (Volatility::Volatile, 1)] {
        let (stage, runs) = stopping_at_5(|answers, _, _| {
            let _ = answers.send(Err(Status::unavailable("lost")));
        });
        let error = stage.ask(volatility, &[(3..10).collect()]).remove(0).unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{error}");
        assert_eq!(runs.load(SeqCst), most, "{volatility:?}");
    }
}

#[test]
fn a_server_without_room_is_asked_again_but_not_for_what_was_run() {
    for (volatility, is_answered) in [(Volatility::Immutable, true), (Volatility::Volatile, false)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let script: Script = Arc::new(move |mut calls: Calls, answers: Answers| {
            let asked = counted.clone();
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&plain())));
                while let Some((batch, metadata)) = calls.next().await {
                    let values: Vec<i64> = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                    // The second request finds no room.
                    let said = match asked.fetch_add(1, SeqCst) {
                        1 => r#"{"kind": "busy", "message": "full"}"#.to_string(),
                        _ => match values.iter().position(|value| *value == 7) {
                            Some(row) => format!(r#"{{"kind": "user_code", "message": "no 7", "row": {row}}}"#),
                            None => {
                                let results = values.iter().map(|value| Some(value * 10)).collect();
                                let _ = answers.send(Ok(reply(&plain(), results, &metadata)));
                                continue;
                            }
                        },
                    };
                    let said = metadata.replace('}', &format!(", \"error\": {said}}}"));
                    let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(said)));
                    return;
                }
            })
        });
        let stage = Stage::of(HELLO, script);
        let answer = stage.ask(volatility, &[vec![6, 7, 8]]).remove(0);
        match is_answered {
            true => assert_eq!(answer.unwrap().0, [Some(60), None, Some(80)]),
            false => {
                assert_eq!(answer.unwrap_err().kind(), Kind::Busy);
                assert_eq!(asked.load(SeqCst), 2);
            }
        }
    }
}
