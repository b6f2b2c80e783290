//! A client without file descriptors says so, and another one works once there are some. In a process of its own, which the
//! limit is for.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use udf_client::client::Client;
use udf_client::control::Request;
use udf_client::host::PlainHost;
use udf_types::{Error, Kind};

fn ask(client: &Client) -> Error {
    let manager = std::env::temp_dir().join("no-manager.sock");
    client.ask_manager(&PlainHost, &manager, Request::Ping, Duration::from_secs(10)).unwrap_err()
}

#[test]
fn a_client_without_descriptors_says_so_and_another_may_start() {
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The doorbell is the last that can be opened.
    setrlimit(Resource::RLIMIT_NOFILE, next + 1, hard).unwrap();
    let client = Client::start().unwrap();
    let error = ask(&client);
    assert!(!client.is_running());
    // Asked again, it still knows.
    let again = ask(&client);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let expected = "could not start the client of container functions: Too many open files (os error 24)";
    assert_eq!([error.message(), again.message()], [expected; 2]);
    assert_eq!(error.kind(), Kind::Unreachable);
    let other = Client::start().unwrap();
    assert!(ask(&other).to_string().contains("manager"));
    assert!(other.is_running());
    other.stop();
}
