//! A file for Docker Compose: a service per replica, which has no port, and the gateway before all of them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use super::gateway::{self, SECRETS, SOCKETS, Server};
use super::{DESCRIPTORS, Image, Published, TMP_MB, quote};
use crate::sandbox::REPLICA_ID;

/// A port of the host for each replica.
fn host_ports(first: u16, replicas: u32) -> Option<RangeInclusive<u16>> {
    let further = u16::try_from(replicas.max(1) - 1).ok()?;
    Some(first..=first.checked_add(further)?).filter(|_| first > 0)
}

/// What Compose publishes: a port or a range, the same inside as outside.
fn publish(address: IpAddr, ports: &RangeInclusive<u16>) -> String {
    let (first, last) = (ports.start(), ports.end());
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    let address = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    quote(&format!("{address}:{range}:{range}"))
}

/// The endpoint that names all of them, which take turns.
fn endpoint(scheme: &str, address: IpAddr, ports: &RangeInclusive<u16>) -> String {
    let address = if address.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { address };
    let endpoints = ports.clone().map(|port| format!("{scheme}://{}", SocketAddr::new(address, port)));
    endpoints.collect::<Vec<_>>().join(",")
}

/// What no container of the project may do, and what of the host each may take.
fn lock_down(file: &mut String, memory_mb: u64, cpus: &str, pids: u32, descriptors: u32, tmp_mb: u64) {
    let _ = write!(
        file,
        r#"    user: "{REPLICA_ID}:{REPLICA_ID}"
    read_only: true
    tmpfs: ["/tmp:rw,noexec,nosuid,nodev,size={tmp_mb}m"]
    ipc: private
    shm_size: {SHM_MB}m
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    init: true
    restart: unless-stopped
    pids_limit: {pids}
    ulimits: {{core: 0, nofile: {descriptors}}}
    memswap_limit: {memory_mb}M
    logging:
      driver: json-file
      options: {{max-size: 10m, max-file: "2"}}
    stop_grace_period: 15s
    deploy:
      resources:
        limits:
          cpus: "{cpus}"
          memory: {memory_mb}M
"#
    );
}

/// Where the gateway's configuration is written.
const CONFIGURATION: &str = "/tmp/nginx.conf";
/// Shared memory of a container's own, in MB.
const SHM_MB: u64 = 64;
/// Processes of the gateway.
const GATEWAY_PIDS: u32 = 128;
/// Descriptors of a process of the gateway: two per connection.
const GATEWAY_DESCRIPTORS: u32 = 16384;

pub(super) fn describe(manifest: &Manifest, image: &Image, name: &str, published: &Published) -> Result<String> {
    let (limits, replicas) = (&manifest.limits, manifest.replicas.max(1));
    let address = published.address;
    let ports = |first| host_ports(first, replicas);
    let (Some(flight), Some(json)) = (ports(published.flight_port), ports(published.json_port)) else {
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!("there are not {replicas} ports from {} and {} on", published.flight_port, published.json_port),
        ));
    };
    if flight.start() <= json.end() && json.start() <= flight.end() {
        let (first, last) = (flight.start().max(json.start()), flight.end().min(json.end()));
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!("the ports {first} to {last} are for Flight and for JSON"),
        )
        .with_hint("Choose others with --flight-port and --json-port; each replica takes one of each."));
    }
    let servers: Vec<Server> = (1..=replicas)
        .zip(flight.clone().zip(json.clone()))
        .map(|(number, (flight_port, json_port))| Server {
            flight_port,
            json_port,
            sockets: format!("{SOCKETS}/{number}"),
        })
        .collect();
    // Compose takes a dollar for a variable of its own.
    let block = |text: &str| gateway::indented(text, 8).replace('$', "$$");
    let configuration = block(&gateway::configuration(&servers));
    let start = block(&format!("printf '%s' \"$CONFIGURATION\" > {CONFIGURATION}\n{}", gateway::start(CONFIGURATION)));
    let volumes: Vec<_> =
        servers.iter().zip(1..).map(|(server, number)| format!(", \"sockets-{number}:{}\"", server.sockets)).collect();
    let mut file = format!(
        r#"# Functions of image {image}, for Docker Compose. Their servers are reached through the gateway alone, which asks for TLS and
# for a token. Beside this file it needs a folder "gateway", with files that user {REPLICA_ID} may read, and others should not:
#   certificate.pem, key.pem   its certificate, followed by those that vouch for it, and the key
#   tokens                     a token per line; lines that begin with # are comments
# The gateway reads them when it starts: after a change,  docker-compose restart {name}
# A database reaches the functions at the endpoint
# {flight_endpoint}
# or {json_endpoint}.
# Other services of the network reach them at grpcs://{name}:{flight_port} and https://{name}:{json_port}.
services:
  {name}:
    image: {gateway}
    entrypoint:
      - sh
      - -c
      - |
{start}    environment:
      CONFIGURATION: |
{configuration}    stop_signal: SIGQUIT
    volumes: ["./gateway:{SECRETS}:ro"{volumes}]
    ports: [{flight_ports}, {json_ports}]
"#,
        image = manifest.image(),
        flight_endpoint = endpoint("grpcs", address, &flight),
        json_endpoint = endpoint("https", address, &json),
        flight_port = flight.start(),
        json_port = json.start(),
        gateway = quote(&published.gateway),
        volumes = volumes.concat(),
        flight_ports = publish(address, &flight),
        json_ports = publish(address, &json),
    );
    lock_down(&mut file, gateway::MEMORY_MB, "1", GATEWAY_PIDS, GATEWAY_DESCRIPTORS, gateway::TMP_MB);
    for number in 1..=replicas {
        let _ = write!(
            file,
            r#"  {name}-{number}:
    image: {reference}
    environment:
      TRANSSHIP_SOCKET_DIR: {SOCKETS}
    volumes: ["sockets-{number}:{SOCKETS}"]
"#,
            reference = quote(&image.reference)
        );
        if image.is_local {
            file.push_str("    pull_policy: never\n");
        }
        if !limits.network {
            file.push_str("    network_mode: none\n");
        }
        lock_down(&mut file, limits.memory_mb, &limits.cpus.to_string(), limits.pids, DESCRIPTORS, TMP_MB);
        if limits.gpus > 0 {
            let _ = write!(
                file,
                r#"    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: {}
              capabilities: [gpu]
"#,
                limits.gpus
            );
        }
    }
    file.push_str("volumes:\n");
    for number in 1..=replicas {
        let _ = write!(
            file,
            r#"  sockets-{number}:
    driver_opts:
      type: tmpfs
      device: tmpfs
      o: "size=64k,nr_inodes=64,noexec,nosuid,nodev,mode=0700,uid={REPLICA_ID},gid={REPLICA_ID}"
"#
        );
    }
    Ok(file)
}
