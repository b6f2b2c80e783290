//! An exchange of one function, counted: what plan nodes, single calls, aggregates and map functions send batches through.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use pgrx::pg_sys;
use udf_client::arena::Writer;
use udf_client::dispatch::Call;
use udf_client::exchange::{Exchange, MapEvent};
use udf_client::inbox::Reply;
use udf_client::outbox::Outgoing;
use udf_types::Result;
use udf_types::transport_name::TransportName;

use crate::host::Backend;
use crate::statistics::Meter;
use crate::{session, settings};

/// An exchange.
pub struct Stream {
    exchange: Exchange,
    meter: Meter,
    sent_at: VecDeque<Instant>,
}

impl Stream {
    /// Opens an exchange of the function with this oid, and begins to reach who answers.
    pub fn open(function: pg_sys::Oid, call: Arc<Call>) -> Stream {
        let client = session::client();
        client.limit_replies(settings::max_reply_bytes());
        Stream { exchange: client.open(call), meter: Meter::new(function), sent_at: VecDeque::new() }
    }

    /// Memory for the columns of a batch, of at least so many bytes.
    pub fn arena(&self, bytes: usize) -> Writer {
        self.exchange.arena(bytes)
    }

    /// Whether constants are known to travel once.
    pub fn takes_constants(&self) -> bool {
        self.exchange.takes_constants()
    }

    /// Sends a batch, without waiting.
    pub fn send(&mut self, batch: impl Into<Outgoing>) {
        let batch = batch.into();
        self.meter.count_sent(batch.columns.num_rows());
        self.sent_at.push_back(Instant::now());
        self.exchange.send(batch);
    }

    /// Batches sent and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.exchange.in_flight()
    }

    /// How batches travel; known once the first is answered.
    pub fn transport(&self) -> Option<TransportName> {
        self.exchange.transport()
    }

    /// Waits for the reply to the oldest batch in flight, or for the next part of it.
    pub fn receive(&mut self) -> Result<Reply> {
        let start = Instant::now();
        let outcome = self.exchange.receive(&Backend);
        self.count(start, &outcome);
        outcome
    }

    fn count(&mut self, start: Instant, outcome: &Result<Reply>) {
        self.meter.count_retries(self.exchange.retries());
        match outcome {
            Ok(reply) => {
                self.meter.count_received(reply, start.elapsed());
                if reply.is_last
                    && let Some(sent_at) = self.sent_at.pop_front()
                {
                    self.meter.count_latency(sent_at.elapsed());
                }
            }
            Err(_) => self.meter.count_error(),
        }
    }

    /// Waits until a map function's server took a batch, or gave results, or ended.
    pub fn receive_from_map(&mut self) -> Result<MapEvent> {
        let start = Instant::now();
        match self.exchange.receive_from_map(&Backend) {
            Ok(MapEvent::Results(reply)) => {
                let outcome = Ok(reply);
                self.count(start, &outcome);
                outcome.map(MapEvent::Results)
            }
            Ok(other) => Ok(other),
            Err(error) => {
                self.meter.count_retries(self.exchange.retries());
                self.meter.count_error();
                Err(error)
            }
        }
    }

    /// A map function's batches that its server did not take yet.
    pub fn untaken(&self) -> usize {
        self.exchange.untaken()
    }

    /// Says that no batch will follow.
    pub fn close(&mut self) {
        self.exchange.close();
    }
}
