//! The gateway before deployed functions: nginx, which asks for TLS and for a token. The functions' servers know neither, and
//! listen on sockets that only it shares.

use std::fmt::Write as _;

/// Where the gateway finds its certificate, its key and the tokens.
pub const SECRETS: &str = "/run/gateway";
/// Where it finds the sockets of a server, and the server the folder for them.
pub const SOCKETS: &str = "/run/functions";
/// Where a probe may ask whether a server answers. It learns nothing else.
pub const HEALTH: &str = "/healthz";

/// Where one server is reached, and where its sockets lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The port that answers Flight.
    pub flight_port: u16,
    /// The port that answers JSON.
    pub json_port: u16,
    /// The folder of its sockets.
    pub sockets: String,
}

/// What holds for all servers. An exchange takes as long as its query, and nothing of it is kept on a disk. What comes without a
/// token is refused before its body is read, and its connection ends.
const ALL: &str = r#"worker_processes auto;
pid /tmp/nginx.pid;
error_log stderr warn;
events {
    worker_connections 4096;
}
http {
    access_log off;
    server_tokens off;
    client_body_temp_path /tmp/client_body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    ssl_certificate {SECRETS}/certificate.pem;
    ssl_certificate_key {SECRETS}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    map_hash_bucket_size 1024;
    map $http_authorization $may_call {
        default 0;
        include {SECRETS}/tokens;
    }
    client_max_body_size 0;
    client_body_timeout 1d;
    send_timeout 1d;
    keepalive_timeout 1d;
    keepalive_time 365d;
    keepalive_requests 1000000000;
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_read_timeout 1d;
    proxy_send_timeout 1d;
    proxy_set_header Host $host;
    proxy_set_header Connection "";
    proxy_set_header Authorization "";
    grpc_buffer_size 64k;
    grpc_read_timeout 1d;
    grpc_send_timeout 1d;
    grpc_set_header Authorization "";
"#;

const ONE: &str = r#"    server {
        listen {FLIGHT_PORT} ssl http2;
        error_page 401 @refused;
        location @refused {
            keepalive_timeout 0;
            return 401;
        }
        location / {
            if ($may_call = 0) {
                return 401;
            }
            grpc_pass grpc://unix:{SOCKETS}/flight.sock;
        }
    }
    server {
        listen {JSON_PORT} ssl;
        error_page 401 @refused;
        location @refused {
            keepalive_timeout 0;
            return 401;
        }
        location / {
            if ($may_call = 0) {
                return 401;
            }
            proxy_pass http://unix:{SOCKETS}/http.sock;
        }
        location = {HEALTH} {
            auth_request /greeting;
            try_files /dev/null =204;
        }
        location = /greeting {
            internal;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_pass http://unix:{SOCKETS}/http.sock:/v1;
        }
    }
"#;

/// The configuration file of a gateway before these servers.
pub fn configuration(servers: &[Server]) -> String {
    let mut file = ALL.replace("{SECRETS}", SECRETS);
    for Server { flight_port, json_port, sockets } in servers {
        let one = ONE
            .replace("{FLIGHT_PORT}", &flight_port.to_string())
            .replace("{JSON_PORT}", &json_port.to_string())
            .replace("{SOCKETS}", sockets)
            .replace("{HEALTH}", HEALTH);
        file.push_str(&one);
    }
    file.push_str("}\n");
    file
}

/// Lines, indented so far, as a block of YAML.
pub fn indented(text: &str, spaces: usize) -> String {
    text.lines().fold(String::new(), |mut block, line| {
        let _ = writeln!(block, "{:spaces$}{line}", "");
        block
    })
}
