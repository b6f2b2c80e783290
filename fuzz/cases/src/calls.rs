//! Calls of clients, as a server reads them.

use arbitrary::{Result, Unstructured};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_flight::FlightData;
use std::sync::Arc;
use udf_codec::arrow_ipc::CallEncoder;
use udf_codec::call_decoder::{CallDecoder, DecodedCalls};
use udf_codec::constants::Constants;
use udf_types::signature::FunctionKind;

use crate::generate::{batch, change, check_valid, signature};
use crate::memory::{LIMIT, within};

/// A stream of calls with constants, as it is written or changed.
pub fn flight_calls(input: &[u8]) {
    let _: Result<()> = (|| {
        let u = &mut Unstructured::new(input);
        let signature = signature(u, &[FunctionKind::Scalar])?;
        let (rows, schema) = (u.int_in_range(0..=20)?, signature.call_schema());
        let mut positions = Vec::new();
        for position in 0..signature.arguments.len() {
            if u.arbitrary()? {
                positions.push(position);
            }
        }
        let (mut encoder, opening) = CallEncoder::new(schema.clone(), positions.clone());
        let mut messages = vec![opening];
        let mut expected = Vec::new();
        for _ in 0..2 {
            let (whole, one) = (batch(u, &signature.call_types(), rows)?, batch(u, &signature.call_types(), 1)?);
            let constants = Constants::new(positions.iter().map(|at| (*at, one.column(*at).clone())).collect());
            let others = Arc::new(constants.schema_of_others(&schema));
            let columns = (0..whole.num_columns()).filter(|at| !positions.contains(at));
            let columns = columns.map(|at| whole.column(at).clone()).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let others = RecordBatch::try_new_with_options(others, columns, &options).expect("they are of these types");
            messages.extend(encoder.encode(&others, &constants).expect("batches can be encoded"));
            expected.push(DecodedCalls { others, constants });
        }
        let mut is_changed = false;
        for FlightData { data_header, data_body, .. } in &mut messages {
            let (mut header, mut body) = (data_header.to_vec(), data_body.to_vec());
            is_changed |= change(u, &mut header, 4)? | change(u, &mut body, 4)?;
            (*data_header, *data_body) = (header.into(), body.into());
        }
        let read = within(LIMIT, || read(&messages));
        for calls in read.iter().flatten() {
            check_valid(&calls.others);
            assert!(calls.constants.values().all(|value| value.len() == 1));
        }
        if !is_changed {
            let read = read.expect("what is as it was written is read");
            assert_eq!(read.len(), expected.len());
            for (read, expected) in read.iter().zip(&expected) {
                assert_eq!(read.others.columns(), expected.others.columns());
                assert!(read.constants.values().eq(expected.constants.values()));
                assert_eq!(read.constants.positions(), expected.constants.positions());
            }
        }
        Ok(())
    })();
}

fn read(messages: &[FlightData]) -> std::result::Result<Vec<DecodedCalls>, String> {
    let mut decoder = CallDecoder::new(&messages[0]).map_err(|cause| cause.to_string())?;
    let read =
        messages[1..].iter().map(|message| decoder.read(message, LIMIT / 4).map_err(|cause| format!("{cause:?}")));
    let read = read.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(read.into_iter().flatten().collect())
}
