//! By which names the door may be asked for. A page of another site may have a name of its own stand for this host (DNS
//! rebinding), and would then read the answer as its own; the browser still sends that name.

use std::net::IpAddr;

use hyper::http::uri::Authority;

/// The names.
#[derive(Debug)]
pub(super) struct Hosts {
    listening: IpAddr,
    names: Vec<String>,
}

impl Hosts {
    /// The address on which the door listens, `localhost`, and further names.
    pub(super) fn new(listening: IpAddr, names: Vec<String>) -> Hosts {
        Hosts { listening, names }
    }

    /// Whether a request may have that in its header `Host`, with or without a port.
    pub(super) fn permit(&self, host: &str) -> bool {
        // A user's name is none of a host's.
        if host.contains('@') {
            return false;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        match address.parse::<IpAddr>() {
            // No address can be made to stand for another.
            Ok(address) => address == self.listening || address.is_loopback() || self.listening.is_unspecified(),
            Err(_) => {
                name.eq_ignore_ascii_case("localhost")
                    || self.names.iter().any(|permitted| permitted.eq_ignore_ascii_case(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_not_permitted() {
        let hosts = Hosts::new("127.0.0.1".parse().unwrap(), vec!["db.example".into()]);
        for host in ["127.0.0.1", "127.0.0.1:9", "localhost:9187", "LOCALHOST", "[::1]:9", "db.example:9", "DB.example"]
        {
            assert!(hosts.permit(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9187",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil@localhost",
            "localhost:9@evil.example",
            "10.0.0.1",
            "[::1",
            "localhost/evil",
            "localhost evil",
            "2130706433",
        ] {
            assert!(!hosts.permit(host), "{host}");
        }
        let open = Hosts::new("0.0.0.0".parse().unwrap(), Vec::new());
        assert!(open.permit("10.0.0.1:9187") && open.permit("localhost") && !open.permit("evil.example"));
    }
}
