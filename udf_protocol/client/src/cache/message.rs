//! What clients and the store of results say to each other, as bytes. The first byte says which message it is; numbers have
//! their lower bytes first.

use std::time::Duration;

/// A function of one server, as one user calls it: 128 bits of a hash (`keys.rs`).
pub type Namespace = [u8; 16];
/// A row of its arguments: 128 bits of a hash.
pub type Key = [u8; 16];

/// The length of a result that is not there.
const MISSING: u32 = u32::MAX;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Gives the results of some rows, as far as they are there: [`Response::Found`].
    LookUp {
        /// Whose rows.
        namespace: Namespace,
        /// Results that are older are not given.
        max_age: Option<Duration>,
        /// How long the client waits for an answer. The store need not use all of it.
        timeout: Duration,
        /// The rows.
        keys: Vec<Key>,
    },
    /// Keeps results: [`Response::Done`].
    Insert {
        /// Whose rows.
        namespace: Namespace,
        /// What [`Response::Found`] said. If the namespace was reset since, nothing is kept.
        generation: u64,
        /// What a call takes.
        cost: CallCost,
        /// Whether the client goes without the store, because calls are cheaper than look-ups.
        is_too_cheap: bool,
        /// The rows.
        keys: Vec<Key>,
        /// Their results.
        results: Results,
    },
    /// Forgets the results of a function: [`Response::Done`], or [`Response::NotForgotten`].
    Reset {
        /// Whose rows.
        namespace: Namespace,
    },
    /// Says what it knows of some functions: [`Response::Counters`].
    Count {
        /// Which.
        namespaces: Vec<Namespace>,
    },
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// To [`Request::LookUp`].
    Found {
        /// Changes when the namespace is reset.
        generation: u64,
        /// What a call takes, as clients have said.
        cost: CallCost,
        /// One per row.
        results: Results,
    },
    /// To [`Request::Insert`] and [`Request::Reset`].
    Done,
    /// To [`Request::Count`]: one per namespace.
    Counters(Vec<Counters>),
    /// To [`Request::Reset`]: the disk has not taken it, so that results may come back when the store starts again.
    NotForgotten,
}

/// What a call takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallCost {
    /// In nanoseconds per row.
    pub ns: u64,
    /// Rows of the batch by which that is known; 0 if it is not.
    pub known_by: u32,
}

/// What the store knows of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows whose results it had.
    pub hits: u64,
    /// Rows whose results it had not.
    pub misses: u64,
    /// Results that it holds.
    pub results: u64,
    /// Bytes that they need.
    pub bytes: u64,
    /// Results that made room for others.
    pub evictions: u64,
    /// Whether clients go without it, because calls are cheaper than look-ups.
    pub is_too_cheap: bool,
    /// Rows of the hits whose results were on disk, and not in memory.
    pub disk_hits: u64,
}

/// Results, one behind the other; some may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    lengths: Vec<u32>,
    bytes: Vec<u8>,
}

impl Results {
    /// Adds one, or the fact that it is missing. One that is too long to have a length is missing.
    pub fn push(&mut self, result: Option<&[u8]>) {
        let result = result.filter(|result| u32::try_from(result.len()).is_ok_and(|length| length != MISSING));
        match result {
            Some(result) => {
                self.lengths.push(result.len() as u32);
                self.bytes.extend_from_slice(result);
            }
            None => self.lengths.push(MISSING),
        }
    }

    /// How many there are, the missing ones included.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Each of them; none for a missing one.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.bytes.as_slice();
        self.lengths.iter().map(move |length| {
            if *length == MISSING {
                return None;
            }
            let (result, others) = rest.split_at(*length as usize);
            rest = others;
            Some(result)
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend((self.lengths.len() as u32).to_le_bytes());
        out.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        out.extend_from_slice(&self.bytes);
    }

    /// The rest of a message.
    fn read(reader: &mut Reader<'_>) -> Option<Results> {
        let count = reader.u32()? as usize;
        let lengths = reader.take(count.checked_mul(4)?)?;
        let lengths: Vec<u32> = lengths.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let bytes = std::mem::take(&mut reader.0).to_vec();
        let there = lengths.iter().filter(|length| **length != MISSING);
        (there.map(|length| *length as usize).sum::<usize>() == bytes.len()).then_some(Results { lengths, bytes })
    }
}

impl Request {
    /// Bytes of a request to keep results, without these.
    pub const INSERT_BYTES: usize = 64;
    /// Bytes in a request for each row, without its result.
    pub const ROW_BYTES: usize = size_of::<Key>() + 4;

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Request::LookUp { namespace, max_age, timeout, keys } => {
                out.reserve(64 + 16 * keys.len());
                out.push(0);
                out.extend(namespace);
                let age = max_age.map_or(u64::MAX, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
                out.extend(age.to_le_bytes());
                out.extend(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
                write_keys(keys, &mut out);
            }
            Request::Insert { namespace, generation, cost, is_too_cheap, keys, results } => {
                out.reserve(Request::INSERT_BYTES + Request::ROW_BYTES * keys.len() + results.bytes());
                out.push(1);
                out.extend(namespace);
                out.extend(generation.to_le_bytes());
                cost.write(&mut out);
                out.push(u8::from(*is_too_cheap));
                write_keys(keys, &mut out);
                results.write(&mut out);
            }
            Request::Reset { namespace } => {
                out.push(2);
                out.extend(namespace);
            }
            Request::Count { namespaces } => {
                out.push(3);
                write_keys(namespaces, &mut out);
            }
        }
        out
    }

    /// From bytes; none if they are no request.
    pub fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        let request = match reader.u8()? {
            0 => {
                let (namespace, age) = (reader.array()?, reader.u64()?);
                let max_age = (age != u64::MAX).then(|| Duration::from_millis(age));
                let timeout = Duration::from_micros(reader.u64()?);
                Request::LookUp { namespace, max_age, timeout, keys: reader.keys()? }
            }
            1 => {
                let (namespace, generation) = (reader.array()?, reader.u64()?);
                let (cost, is_too_cheap) = (CallCost::read(&mut reader)?, reader.bool()?);
                let (keys, results) = (reader.keys()?, Results::read(&mut reader)?);
                if keys.len() != results.len() {
                    return None;
                }
                Request::Insert { namespace, generation, cost, is_too_cheap, keys, results }
            }
            2 => Request::Reset { namespace: reader.array()? },
            3 => Request::Count { namespaces: reader.keys()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(request)
    }
}

impl Response {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Response::Found { generation, cost, results } => {
                out.reserve(64 + 4 * results.len() + results.bytes());
                out.push(0);
                out.extend(generation.to_le_bytes());
                cost.write(&mut out);
                results.write(&mut out);
            }
            Response::Done => out.push(1),
            Response::NotForgotten => out.push(3),
            Response::Counters(counters) => {
                out.push(2);
                out.extend((counters.len() as u32).to_le_bytes());
                for Counters { hits, misses, results, bytes, evictions, is_too_cheap, disk_hits } in counters {
                    out.extend([hits, misses, results, bytes, evictions].into_iter().flat_map(|it| it.to_le_bytes()));
                    out.push(u8::from(*is_too_cheap));
                    out.extend(disk_hits.to_le_bytes());
                }
            }
        }
        out
    }

    /// From bytes; none if they are no response.
    pub fn from_bytes(bytes: &[u8]) -> Option<Response> {
        let mut reader = Reader(bytes);
        let response = match reader.u8()? {
            0 => {
                let (generation, cost) = (reader.u64()?, CallCost::read(&mut reader)?);
                Response::Found { generation, cost, results: Results::read(&mut reader)? }
            }
            1 => Response::Done,
            2 => {
                let count = reader.u32()?;
                let counters = (0..count).map(|_| {
                    let [hits, misses, results, bytes, evictions] =
                        [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
                    let (is_too_cheap, disk_hits) = (reader.bool()?, reader.u64()?);
                    Some(Counters { hits, misses, results, bytes, evictions, is_too_cheap, disk_hits })
                });
                Response::Counters(counters.collect::<Option<Vec<_>>>()?)
            }
            3 => Response::NotForgotten,
            _ => return None,
        };
        reader.0.is_empty().then_some(response)
    }
}

impl CallCost {
    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.ns.to_le_bytes());
        out.extend(self.known_by.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<CallCost> {
        Some(CallCost { ns: reader.u64()?, known_by: reader.u32()? })
    }
}

fn write_keys(keys: &[Key], out: &mut Vec<u8>) {
    out.extend((keys.len() as u32).to_le_bytes());
    out.extend_from_slice(keys.as_flattened());
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
        self.u8().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn keys(&mut self) -> Option<Vec<Key>> {
        let count = self.u32()? as usize;
        Some(self.take(count.checked_mul(size_of::<Key>())?)?.as_chunks().0.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn results(values: &[Option<Vec<u8>>]) -> Results {
        let mut results = Results::default();
        values.iter().for_each(|value| results.push(value.as_deref()));
        results
    }

    proptest! {
        #[test]
        fn requests_and_responses_are_read_as_they_were_written(
            rows in prop::collection::vec((any::<Key>(), prop::option::of(prop::collection::vec(any::<u8>(), 0..9))), 0..9),
            namespace: Namespace,
            numbers: [u64; 5],
            known_by: u32,
            flag: bool,
            age in prop::option::of(0..u64::MAX - 1),
        ) {
            let (keys, values): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let (generation, cost) = (numbers[0], CallCost { ns: numbers[1], known_by });
            let timeout = Duration::from_micros(numbers[2]);
            prop_assert_eq!(results(&values).iter().map(|it| it.map(<[u8]>::to_vec)).collect::<Vec<_>>(), values.clone());
            for request in [
                Request::LookUp { namespace, max_age: age.map(Duration::from_millis), timeout, keys: keys.clone() },
                Request::Insert { namespace, generation, cost, is_too_cheap: flag, keys: keys.clone(), results: results(&values) },
                Request::Reset { namespace },
                Request::Count { namespaces: keys },
            ] {
                let bytes = request.to_bytes();
                prop_assert_eq!(Request::from_bytes(&bytes), Some(request));
                // A message that is cut off, or goes on, is none.
                prop_assert!((0..bytes.len()).all(|end| Request::from_bytes(&bytes[..end]).is_none()));
                prop_assert_eq!(Request::from_bytes(&[&bytes[..], &[0]].concat()), None);
            }
            let [hits, misses, held, bytes, evictions] = numbers;
            let disk_hits = hits / 2;
            let counters = Counters { hits, misses, results: held, bytes, evictions, is_too_cheap: flag, disk_hits };
            for response in [
                Response::Found { generation, cost, results: results(&values) },
                Response::Done,
                Response::NotForgotten,
                Response::Counters(vec![counters; 3]),
            ] {
                let bytes = response.to_bytes();
                prop_assert_eq!(Response::from_bytes(&bytes), Some(response));
                prop_assert!((0..bytes.len()).all(|end| Response::from_bytes(&bytes[..end]).is_none()));
                prop_assert_eq!(Response::from_bytes(&[&bytes[..], &[0]].concat()), None);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(request) = Request::from_bytes(&bytes) {
                prop_assert_eq!(request.to_bytes(), bytes.clone());
            }
            if let Some(response) = Response::from_bytes(&bytes) {
                prop_assert_eq!(response.to_bytes(), bytes);
            }
        }
    }
}
