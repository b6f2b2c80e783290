//! Leases: how long they last beyond the calls that need them.

use std::time::{Duration, Instant};

use udf_client::client::LINGER;
use udf_types::signature::Volatility;

use crate::stage::{Stage, answer_all, batches, receive, wait_until};

#[test]
fn leases_last_for_a_moment_after_they_were_used() {
    let start = Instant::now();
    for keep_alive in [true, false] {
        let (stage, [leases, connections, ended]) = loop {
            assert!(start.elapsed() < Duration::from_secs(120), "five calls take longer than a lease is kept");
            let (begun, stage) = (Instant::now(), Stage::of_server(keep_alive, answer_all));
            for _ in 0..5 {
                let mut exchange = stage.open(Volatility::Volatile);
                exchange.send(batches(1, 1).remove(0));
                assert_eq!(receive(&mut exchange).unwrap(), [0]);
                drop(exchange);
                // What the end of a transaction does.
                stage.client.release();
            }
            let counts = stage.counts();
            // On a machine that stands still, the moment may be over already.
            if begun.elapsed() < LINGER {
                break (stage, counts);
            }
        };
        // The first exchange is another thread's, which gives its connection back when it gets to it.
        let expected = if keep_alive { 1..=2 } else { 4..=5 };
        assert!(leases == 1 && expected.contains(&connections) && ended == 0, "{:?}", stage.counts());
        let begun = Instant::now();
        wait_until(|| stage.counts()[2] == 1);
        assert!(begun.elapsed() < 10 * LINGER);
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        assert_eq!(stage.counts()[..2], [2, connections + 1]);
    }
}

#[test]
fn leases_that_are_used_again_in_time_are_kept() {
    let stage = Stage::of_server(true, answer_all);
    let (begun, mut used, mut late) = (Instant::now(), Instant::now(), 0);
    while begun.elapsed() < 3 * LINGER {
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        stage.client.release();
        // A machine that stands still for a while makes a pause long.
        late += usize::from(used.elapsed() > LINGER / 2);
        used = Instant::now();
        std::thread::sleep(LINGER / 10);
    }
    assert!(stage.counts()[0] <= 1 + late, "{:?}, {late} late", stage.counts());
}

#[test]
fn a_session_that_goes_on_with_another_image_keeps_no_lease_on_the_first() {
    let stage = Stage::of_server(true, answer_all);
    stage.call_once("sha256:1");
    wait_until(|| {
        stage.call_once("sha256:2");
        stage.counts()[2] == 1
    });
}

#[test]
fn a_session_gives_back_what_it_does_not_use_where_another_lease_has_to_wait() {
    let stage = Stage::of_server(true, answer_all);
    for digest in ["sha256:1", "sha256:2", "sha256:scarce"] {
        stage.call_once(digest);
    }
    assert_eq!(stage.counts()[2], 2);
}

#[test]
fn transactions_without_calls_keep_no_lease() {
    let stage = Stage::of_server(true, answer_all);
    let mut exchange = stage.open(Volatility::Volatile);
    exchange.send(batches(1, 1).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), [0]);
    drop(exchange);
    // A session that goes on with other things.
    wait_until(|| {
        stage.client.release();
        stage.counts()[2] == 1
    });
}
