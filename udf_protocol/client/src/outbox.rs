//! Calls on their way out: what a transport sends, and what it may have to send again.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;
use udf_codec::batch::CallBatch;

use crate::arena::Arena;
use crate::names::random_name;

/// A batch on its way out.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The calls.
    pub batch: CallBatch,
    /// What some of the columns lie in, if an engine wrote them in place.
    pub arena: Option<Arc<Arena>>,
}

impl From<CallBatch> for Outgoing {
    fn from(batch: CallBatch) -> Outgoing {
        Outgoing { batch, arena: None }
    }
}

impl Deref for Outgoing {
    type Target = CallBatch;

    fn deref(&self) -> &CallBatch {
        &self.batch
    }
}

/// Calls on their way out: those not yet answered, oldest first, then those the engine adds.
#[derive(Debug)]
pub struct Outbox {
    /// What tells the exchange from all others, however often its batches are sent; made for those who ask.
    name: OnceLock<String>,
    unanswered: VecDeque<Outgoing>,
    /// Whether the engine has a part of the answer to the oldest of them.
    is_partly_answered: bool,
    /// How long the engine waits for the answer to a batch.
    patience: Duration,
    /// Whether any was answered.
    has_answers: bool,
    /// How many of `unanswered` this exchange has sent.
    sent: usize,
    incoming: mpsc::UnboundedReceiver<Outgoing>,
}

impl Outbox {
    /// An outbox that the sender's side fills. The engine's window bounds it.
    pub fn new() -> (mpsc::UnboundedSender<Outgoing>, Outbox) {
        let (sender, incoming) = mpsc::unbounded_channel();
        (
            sender,
            Outbox {
                name: OnceLock::new(),
                unanswered: VecDeque::new(),
                is_partly_answered: false,
                patience: Duration::MAX,
                has_answers: false,
                sent: 0,
                incoming,
            },
        )
    }

    /// The exchange's name, which no other has.
    pub(crate) fn name(&self) -> &str {
        self.name.get_or_init(random_name)
    }

    /// Notes how long the engine waits for the answer to a batch.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How long the engine waits for the answer to a batch.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// The next batch to send; none once the engine has closed its side and all was handed out.
    /// Cancel-safe: a batch is handed out whole or not at all.
    pub async fn next(&mut self) -> Option<Outgoing> {
        if self.sent == self.unanswered.len() {
            let batch = self.incoming.recv().await?;
            self.unanswered.push_back(batch);
        }
        self.sent += 1;
        Some(self.unanswered[self.sent - 1].clone())
    }

    /// Waits until there is a batch to send; false once there will be none. Cancel-safe.
    pub async fn wait_for_more(&mut self) -> bool {
        if self.sent == self.unanswered.len() {
            match self.incoming.recv().await {
                Some(batch) => self.unanswered.push_back(batch),
                None => return false,
            }
        }
        true
    }

    /// The next batch to send, if it is known.
    pub fn peek(&self) -> Option<&Outgoing> {
        self.unanswered.get(self.sent)
    }

    /// Takes back the batch that was handed out last, which was not sent.
    pub fn take_back(&mut self) {
        self.sent -= 1;
    }

    /// The oldest batch that was sent, of which the engine now gets a part of the answer: it cannot be sent again.
    pub fn answer_partly(&mut self) -> Option<&Outgoing> {
        self.is_partly_answered = true;
        if self.sent == 0 { None } else { self.unanswered.front() }
    }

    /// Whether what is unanswered may be sent again.
    pub fn can_rewind(&self) -> bool {
        !self.is_partly_answered
    }

    /// Strikes a batch off; its number must be among those sent.
    pub fn answer(&mut self, number: u64) -> Option<Outgoing> {
        let position = self.unanswered.iter().take(self.sent).position(|batch| batch.number == number)?;
        self.is_partly_answered = false;
        self.has_answers = true;
        self.sent -= 1;
        self.unanswered.remove(position)
    }

    /// The oldest batch that was sent and not answered.
    pub fn oldest_sent(&self) -> Option<u64> {
        if self.sent == 0 { None } else { self.unanswered.front().map(|batch| batch.number) }
    }

    /// Whether nothing is known that is to be sent, or was sent and is not answered.
    pub fn is_quiet(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Batches sent and not answered.
    pub fn awaited(&self) -> usize {
        self.sent
    }

    /// Whether any batch was answered.
    pub fn has_answers(&self) -> bool {
        self.has_answers
    }

    /// Makes the next exchange send again what is unanswered.
    pub fn rewind(&mut self) {
        self.sent = 0;
    }
}
