//! An exchange of one function, as the backend's drivers use it: its waits can be interrupted, and what is done is counted for all
//! backends.

use std::sync::Arc;
use std::time::Instant;

use pgrx::pg_sys;
use udf_client::arena::Writer;
use udf_client::cache::CacheUse;
use udf_client::dispatch::Call;
use udf_client::driver::{Hosted, Lane, MapLane, Taken};
use udf_client::exchange::MapEvent;
use udf_client::inbox::{Reply, bytes_of, bytes_of_column};
use udf_client::outbox::Outgoing;
use udf_types::Result;
use udf_types::transport_name::TransportName;

use crate::host::Backend;
use crate::pg::reserve;
use crate::statistics::Meter;
use crate::{observed, report, session, settings};

/// An exchange.
pub struct Stream {
    exchange: Hosted<Backend>,
    meter: Meter,
}

impl Stream {
    /// Opens an exchange of the function with this oid, and begins to reach who answers.
    pub fn open(function: pg_sys::Oid, call: Arc<Call>) -> Stream {
        Stream::open_with_cache(function, call, None)
    }

    /// The same, with results looked up before calls are sent.
    pub fn open_with_cache(function: pg_sys::Oid, call: Arc<Call>, usage: Option<CacheUse>) -> Stream {
        let client = session::client();
        client.limit_replies(settings::max_reply_bytes());
        let exchange = client.open_with_cache(call, observed::observation(), usage);
        let exchange = Hosted { exchange, host: Backend };
        Stream { exchange, meter: Meter::new(function) }
    }

    /// Memory for the columns of a batch, of at least so many bytes.
    pub fn arena(&self, bytes: usize) -> Writer {
        self.exchange.exchange.arena(bytes)
    }

    /// Whether constants are known to travel once.
    pub fn takes_constants(&self) -> bool {
        self.exchange.exchange.takes_constants()
    }

    /// Whether another exchange would run on this thread, as this one does not.
    pub fn may_be_nearer(&self) -> bool {
        self.exchange.exchange.may_be_nearer()
    }

    /// Batches sent and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.exchange.exchange.in_flight()
    }
}

impl Lane for Stream {
    fn send(&mut self, batch: Outgoing) {
        let constants: usize = batch.constants.values().map(bytes_of_column).sum();
        report::unwrap(reserve::check_room(bytes_of(&batch.columns) + constants));
        self.meter.count_sent(batch.columns.num_rows());
        self.exchange.send(batch);
    }

    fn receive(&mut self) -> Result<Reply> {
        self.exchange.receive()
    }

    fn is_answered(&mut self) -> bool {
        self.exchange.is_answered()
    }

    fn transport(&self) -> Option<TransportName> {
        self.exchange.transport()
    }

    fn note(&mut self, outcome: &Result<Reply>, taken: Taken) {
        self.meter.count_retries(self.exchange.exchange.retries());
        match outcome {
            Ok(reply) => {
                self.meter.count_received(reply, taken.waited);
                if let Some(latency) = taken.latency {
                    self.meter.count_latency(latency);
                }
            }
            Err(_) => self.meter.count_error(),
        }
        let lines = self.exchange.exchange.take_lines();
        if !lines.is_empty() {
            observed::show_lines(self.exchange.exchange.function(), &lines);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        observed::note_end();
    }
}

impl MapLane for Stream {
    fn receive_from_map(&mut self) -> Result<MapEvent> {
        self.exchange.receive_from_map()
    }

    fn has_map_event(&mut self) -> bool {
        self.exchange.has_map_event()
    }

    fn wait_for_map(&mut self, until: Option<Instant>, is_woken: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.exchange.wait_for_map(until, is_woken)
    }

    fn untaken(&self) -> usize {
        self.exchange.untaken()
    }

    fn close(&mut self) {
        self.exchange.close();
    }
}
