//! What clients and the store of kept results say to each other.

use arbitrary::{Result, Unstructured};
use udf_client::cache::fuzzing::{read_found, write_found};
use udf_client::cache::message::{Request, Response};

use crate::generate::{change, column, ty};
use crate::memory::{LIMIT, within};

/// Results that a store gives, as they are kept or changed.
pub fn cached_results(input: &[u8]) {
    let _: Result<()> = (|| {
        let u = &mut Unstructured::new(input);
        let (ty, rows) = (ty(u, 3)?, u.int_in_range(0..=20)?);
        let column = column(u, &ty, rows)?;
        let written = write_found(&column).expect("results of every type can be kept");
        let mut bytes = written.clone();
        let is_changed = change(u, &mut bytes, 6)?;
        let read = within(LIMIT, || read_found(&ty, &bytes, LIMIT / 8));
        if let Some(read) = &read {
            read.to_data().validate_full().expect("what was accepted is valid");
        }
        if !is_changed {
            let read = read.expect("what is as it was kept is read");
            assert_eq!((read.len(), write_found(&read)), (rows, Some(written)));
        }
        Ok(())
    })();
}

/// Any bytes in place of a request or a response.
pub fn cache_messages(input: &[u8]) {
    let request = within(LIMIT, || Request::from_bytes(input));
    let response = within(LIMIT, || Response::from_bytes(input));
    assert!(request.is_none_or(|request| request.to_bytes() == input), "a request has one form");
    assert!(response.is_none_or(|response| response.to_bytes() == input), "a response has one form");
}
