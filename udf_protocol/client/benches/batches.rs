//! Milliseconds per batch of 10,000 rows, 28 doubles there and one back, by transport and number in flight: what the protocol's
//! client and a server need for it, without an engine. `bench/batches/run.py` calls this, and makes a table of the lines.
//! Arguments: the manager's socket, rounds.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_codec::batch::CallBatch;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

const IMAGE: &str = "bench-overhead:1.0";
const ROWS: usize = 10_000;
const COLUMNS: usize = 28;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds --bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let socket = PathBuf::from(arguments.next().ok_or("which manager?")?);
    let rounds: usize = arguments.next().ok_or("how many rounds?")?.parse()?;
    let client = Client::start()?;
    let digest = client.resolve_image(&PlainHost, &socket, IMAGE, TIMEOUT)?.digest;
    let argument = |i: usize| Argument { name: format!("f{i}"), ty: Type::Float8 };
    let signature = Signature::scalar("first", (0..COLUMNS).map(argument).collect(), Type::Float8);
    let column = |i: usize| {
        let values: Vec<f64> = (0..ROWS).map(|row| ((row * 31 + i * 17) % 1009) as f64 / 1009.0).collect();
        Arc::new(Float64Array::from(values)) as ArrayRef
    };
    let columns = RecordBatch::try_new(signature.call_schema(), (0..COLUMNS).map(column).collect())?;
    let contenders = [
        (TransportName::Shm, 200),
        (TransportName::Socket, 100),
        (TransportName::Flight, 100),
        (TransportName::Parquet, 20),
        (TransportName::Json, 20),
    ];
    for _ in 0..=rounds {
        for (transport, batches) in contenders {
            for in_flight in [1, 2] {
                let measured =
                    milliseconds(&client, &socket, &digest, &signature, &columns, transport, batches, in_flight)?;
                println!("{} {in_flight} {measured}", transport.name());
            }
        }
    }
    client.stop();
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "all that one measurement depends on")]
fn milliseconds(
    client: &Client,
    manager: &Path,
    digest: &str,
    signature: &Signature,
    columns: &RecordBatch,
    transport: TransportName,
    batches: u64,
    in_flight: u64,
) -> Result<f64, Box<dyn Error>> {
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Image { manager: manager.to_path_buf(), digest: digest.to_string() },
        transport,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: TIMEOUT,
        start_timeout: TIMEOUT,
        tables: Vec::new(),
    }));
    let (mut sent, mut received) = (0, 0);
    let mut start = Instant::now();
    // Segments are made and connections opened before the clock runs.
    let warm_up = 2 * in_flight;
    while received < warm_up + batches {
        while sent < warm_up + batches && sent - received < in_flight {
            exchange.send(CallBatch::new(sent, columns.clone()));
            sent += 1;
        }
        let reply = exchange.receive(&PlainHost)?;
        if reply.columns.column(0) != columns.column(0) {
            return Err("the first column did not come back".into());
        }
        received += 1;
        if received == warm_up {
            start = Instant::now();
        }
    }
    if exchange.transport() != Some(transport) {
        return Err(format!("{} is not offered", transport.name()).into());
    }
    Ok(start.elapsed().as_secs_f64() * 1000.0 / batches as f64)
}
