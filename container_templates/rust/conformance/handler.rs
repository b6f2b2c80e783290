//! The functions of the conformance suite, as docs/conformance.md describes them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use transship::arrow_array::cast::AsArray;
use transship::arrow_array::types::{Int64Type, IntervalMonthDayNano};
use transship::arrow_array::{ArrayRef, RecordBatch};
use transship::chrono::{DateTime, NaiveTime, Utc};
use transship::serde::{Deserialize, Serialize};
use transship::serde_json::Value;
use transship::{Aggregate, CallError, Functions, Json, Rows};

pub fn functions() -> Functions {
    Functions::new()
        .scalar("echo_bool", same::<bool>)
        .scalar("echo_int2", same::<i16>)
        .scalar("echo_int4", same::<i32>)
        .scalar("echo_int8", same::<i64>)
        .scalar("echo_float4", same::<f32>)
        .scalar("echo_float8", same::<f64>)
        .scalar("echo_text", same::<String>)
        .scalar("echo_bytea", same::<Vec<u8>>)
        .arrow("echo_date", first)
        .arrow("echo_timestamp", first)
        .scalar("echo_timestamptz", same::<DateTime<Utc>>)
        .scalar("echo_numeric", same::<String>)
        .scalar("echo_uuid", same::<[u8; 16]>)
        .scalar("echo_json", same::<String>)
        .scalar("echo_time", same::<NaiveTime>)
        .scalar("echo_timetz", same::<String>)
        .scalar("echo_interval", same::<IntervalMonthDayNano>)
        .scalar("echo_inet", same::<String>)
        .scalar("echo_cidr", same::<String>)
        .scalar("echo_macaddr", same::<String>)
        .scalar("echo_datetime2", same::<String>)
        .scalar("echo_array", same::<Json<Vec<Option<i32>>>>)
        .scalar("echo_range", same::<Json<Value>>)
        .scalar("echo_composite", same::<Json<Pair>>)
        .scalar("echo_decimals", same::<Json<Decimals>>)
        .scalar("constant", || 7)
        .scalar("add", |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a + b))
        .scalar("write_line", write_line)
        .scalar_async("fail_at", fail_at)
        .arrow("fail_in_batch", fail_in_batch)
        .scalar("wait", wait)
        .scalar("rows_waited", rows_waited)
        .map("running_sum", running_sum)
        .table("repeat", |n: Option<i32>| 1..=n.unwrap_or(0))
        .arrow("table_lookup", table_lookup)
        .aggregate::<Total>("total")
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "transship::serde")]
struct Pair {
    a: Option<i32>,
    b: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "transship::serde")]
struct Decimals {
    a: Option<String>,
    b: Option<Vec<Option<String>>>,
}

fn same<T>(x: Option<T>) -> Option<T> {
    x
}

fn first(batch: &RecordBatch) -> Result<ArrayRef, String> {
    Ok(batch.column(0).clone())
}

fn write_line(text: String) -> String {
    transship::write_line(&text);
    text
}

// Its calls wait beside each other.
async fn fail_at(x: i64) -> Result<i64, String> {
    transship::tokio::task::yield_now().await;
    if x == 13 { Err("13 is bad".to_string()) } else { Ok(x) }
}

fn fail_in_batch(batch: &RecordBatch) -> Result<ArrayRef, String> {
    let column = batch.column(0).as_primitive::<Int64Type>();
    if column.iter().flatten().any(|x| x == 13) { Err("13 is bad".to_string()) } else { Ok(batch.column(0).clone()) }
}

static ROWS_WAITED: AtomicI64 = AtomicI64::new(0);

fn rows_waited() -> i64 {
    ROWS_WAITED.load(Ordering::Relaxed)
}

fn wait(seconds: f64) -> f64 {
    ROWS_WAITED.fetch_add(1, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    seconds
}

fn running_sum(rows: Rows<(Option<i64>,)>) -> impl Iterator<Item = Result<i64, CallError>> {
    let mut sum = 0;
    rows.map(move |row| {
        sum += row?.0.unwrap_or(0);
        Ok(sum)
    })
}

fn table_lookup(batch: &RecordBatch) -> Result<ArrayRef, transship::Error> {
    let rows = transship::table("numbers")?.lookup(batch.columns())?;
    Ok(rows.column(1).clone())
}

#[derive(Default, Serialize, Deserialize)]
#[serde(crate = "transship::serde")]
struct Total(i64);

impl Aggregate for Total {
    type Row = (Option<i64>,);
    type Result = i64;

    fn step(&mut self, (x,): Self::Row) {
        self.0 += x.unwrap_or(0);
    }

    fn merge(&mut self, other: Total) {
        self.0 += other.0;
    }

    fn finish(&self) -> i64 {
        self.0
    }
}
