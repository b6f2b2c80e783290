//! Which of several equal servers takes an exchange: each in turn, but for those that were lost lately.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use udf_project::endpoint::Endpoint;

use crate::transport::tcp::look_up;

/// How long a server is left alone after it was first lost, twice as long each further time, up to the last.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
const LAST_EJECTION: Duration = Duration::from_secs(60);
/// How long the addresses of a name are kept.
const NAME_AGE: Duration = Duration::from_secs(10);
/// Longest wait for the addresses of a name.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);

/// What one session knows of the servers it calls.
#[derive(Debug)]
pub(crate) struct Balance {
    /// Starts anywhere, so that sessions do not all begin with the same server.
    turn: AtomicUsize,
    lost: Mutex<HashMap<Endpoint, Loss>>,
    names: Mutex<HashMap<Endpoint, (Instant, Vec<Endpoint>)>>,
}

#[derive(Debug, Clone, Copy)]
struct Loss {
    times: u32,
    until: Instant,
}

impl Default for Balance {
    fn default() -> Balance {
        let turn = AtomicUsize::new(std::process::id() as usize);
        Balance { turn, lost: Mutex::default(), names: Mutex::default() }
    }
}

impl Balance {
    /// The next server in turn that was not lost lately; of those that were, the one that is due first.
    pub(crate) async fn choose(&self, endpoints: &[Endpoint]) -> Endpoint {
        let mut candidates = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            candidates.extend(self.addresses(endpoint).await);
        }
        self.choose_of(&candidates)
    }

    fn choose_of(&self, candidates: &[Endpoint]) -> Endpoint {
        let lost = self.lost.lock().expect("no holder panics");
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..candidates.len()).map(|step| &candidates[turn.wrapping_add(step) % candidates.len()]);
        let due =
            |endpoint: &&Endpoint| lost.get(*endpoint).map(|loss| loss.until).filter(|until| *until > Instant::now());
        in_turn.min_by_key(due).expect("there is at least one address").clone()
    }

    /// A server answered: whatever was before is forgotten.
    pub(crate) fn note_answer(&self, endpoint: &Endpoint) {
        self.lost.lock().expect("no holder panics").remove(endpoint);
    }

    /// A server was lost.
    pub(crate) fn note_loss(&self, endpoint: &Endpoint) {
        let mut lost = self.lost.lock().expect("no holder panics");
        let times = lost.get(endpoint).map_or(0, |loss| loss.times).saturating_add(1);
        let span = FIRST_EJECTION.saturating_mul(1 << (times - 1).min(6)).min(LAST_EJECTION);
        lost.insert(endpoint.clone(), Loss { times, until: Instant::now() + span });
    }

    /// Endpoints, and the addresses that they were last taken for.
    pub(crate) fn known(&self, endpoints: &[Endpoint]) -> Vec<Endpoint> {
        let names = self.names.lock().expect("no holder panics");
        let addresses = endpoints.iter().filter_map(|endpoint| names.get(endpoint)).flat_map(|(_, found)| found);
        endpoints.iter().chain(addresses).cloned().collect()
    }

    /// The addresses that a name stands for. Under TLS the name itself is kept, since the server must prove it; its
    /// addresses take turns when a connection is made.
    async fn addresses(&self, endpoint: &Endpoint) -> Vec<Endpoint> {
        let make = match endpoint {
            Endpoint::FlightTcp(_) => Endpoint::FlightTcp,
            Endpoint::JsonTcp(_) => Endpoint::JsonTcp,
            _ => return vec![endpoint.clone()],
        };
        let (Endpoint::FlightTcp(authority) | Endpoint::JsonTcp(authority)) = endpoint else {
            return vec![endpoint.clone()];
        };
        if authority.parse::<std::net::SocketAddr>().is_ok() {
            return vec![endpoint.clone()];
        }
        if let Some((since, addresses)) = self.names.lock().expect("no holder panics").get(endpoint)
            && since.elapsed() < NAME_AGE
        {
            return addresses.clone();
        }
        let found = tokio::time::timeout(NAME_TIMEOUT, look_up(authority)).await;
        let mut addresses: Vec<Endpoint> = match found {
            Ok(Ok(found)) => found.into_iter().map(|address| make(address.to_string())).collect(),
            // Connecting to the name will say what is wrong with it.
            _ => Vec::new(),
        };
        // One server may be named twice.
        let mut seen = std::collections::HashSet::new();
        addresses.retain(|address| seen.insert(address.clone()));
        // A name of one server stays a name, which servers that are told apart by their names need.
        if addresses.len() < 2 {
            return vec![endpoint.clone()];
        }
        self.names.lock().expect("no holder panics").insert(endpoint.clone(), (Instant::now(), addresses.clone()));
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: usize) -> Vec<Endpoint> {
        (0..count).map(|port| Endpoint::FlightTcp(format!("127.0.0.1:{}", port + 1))).collect()
    }

    #[test]
    fn the_addresses_of_a_name_are_known_with_it() {
        let (balance, servers) = (Balance::default(), endpoints(2));
        let name = Endpoint::FlightTcp("name:1".into());
        balance.names.lock().unwrap().insert(name.clone(), (Instant::now(), servers.clone()));
        let other = Endpoint::FlightTcp("other:1".into());
        let known = balance.known(&[name.clone(), other.clone()]);
        assert_eq!(known, [vec![name, other], servers].concat());
    }

    #[test]
    fn servers_take_turns_and_the_lost_wait() {
        let (balance, servers) = (Balance::default(), endpoints(3));
        let mut taken: Vec<Endpoint> = (0..3).map(|_| balance.choose_of(&servers)).collect();
        taken.sort_by_key(ToString::to_string);
        assert_eq!(taken, servers);
        balance.note_loss(&servers[1]);
        assert!((0..6).all(|_| balance.choose_of(&servers) != servers[1]));
        balance.note_loss(&servers[0]);
        balance.note_loss(&servers[0]);
        balance.note_loss(&servers[2]);
        balance.note_loss(&servers[2]);
        // All are lost: the one that is due first.
        assert_eq!(balance.choose_of(&servers), servers[1]);
        balance.note_answer(&servers[2]);
        assert!((0..6).all(|_| balance.choose_of(&servers) == servers[2]));
    }

    #[test]
    fn a_lost_server_is_skipped_for_longer_each_time() {
        let (balance, servers) = (Balance::default(), endpoints(1));
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            balance.note_loss(&servers[0]);
            let left = balance.lost.lock().unwrap()[&servers[0]].until - Instant::now();
            assert!((expected * 1000 - 500..=expected * 1000).contains(&(left.as_millis() as u64)), "{left:?}");
        }
    }

    #[tokio::test]
    async fn a_name_of_one_server_stays_a_name() {
        let balance = Balance::default();
        for text in ["grpcs://localhost:1", "grpc://127.0.0.1:1", "grpc://no.such.host.invalid:1", "unix:/x"] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(balance.choose(std::slice::from_ref(&endpoint)).await, endpoint);
        }
    }
}
