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

/// Memory of the gateway in MB. It keeps nothing of what passes through it.
pub const MEMORY_MB: u64 = 256;
/// Its folder for temporary files in MB, which has its configuration and tokens.
pub const TMP_MB: u64 = 16;

/// Longest token, in characters. nginx reads no longer words.
const MAX_TOKEN: usize = 3900;

/// What the gateway's container runs: it makes nginx's map of tokens from the file with a token per line, and becomes nginx.
/// Whoever writes a token must not write configuration, so a token has the characters of RFC 6750 §2.1 and no others, and a file
/// that cannot be right is refused as a whole. Strings in a map are compared without regard to case, so tokens are written as
/// regular expressions. It is for any POSIX shell.
const START: &str = r#"set -eu
export LC_ALL=C
umask 077
file={SECRETS}/tokens
cr=$(printf '\r')
refuse() {
    echo "gateway: $1" >&2
    exit 1
}
[ -r "$file" ] || refuse "cannot read $file"
[ "$(tr -d '\000' < "$file" | wc -c)" -eq "$(wc -c < "$file")" ] || refuse "$file is not a text"
number=0
: > {TOKENS}
while IFS= read -r token || [ -n "$token" ]; do
    number=$((number + 1))
    token=${token%"$cr"}
    case $token in
        '' | '#'*) continue ;;
        *[!A-Za-z0-9._~+/=-]* | '='* | *=[!=]*)
            refuse "line $number of $file is no token: letters, digits, -._~+/ and, at its end, =" ;;
    esac
    [ ${#token} -le {MAX_TOKEN} ] || refuse "line $number of $file is longer than {MAX_TOKEN} characters"
    token=$(printf '%s\n' "$token" | sed 's/[.+]/\\&/g')
    printf '"~^(?i:Bearer) %s$" 1;\n' "$token" >> {TOKENS}
done < "$file"
[ -s {TOKENS} ] || refuse "$file has no token"
exec nginx -c {CONFIGURATION} -g 'daemon off;'
"#;

/// Where the map of tokens lies.
const TOKENS: &str = "/tmp/tokens";

/// What holds for all servers. An exchange takes as long as its query, and nothing of it is kept on a disk. A request without a
/// token is refused before its body is read, and over HTTP/1.1 its connection ends. What a functions' server says of nginx's own
/// business counts for nothing.
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
    map $http_authorization $may_call {
        default 0;
        include {TOKENS};
    }
    map $content_type $is_grpc {
        default 0;
        "~^application/grpc([+;]|$)" 1;
    }
    limit_req_zone $binary_remote_addr$server_port zone=health:1m rate=10r/s;
    client_max_body_size 0;
    client_body_timeout 1d;
    send_timeout 1d;
    keepalive_timeout 1m;
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
    proxy_ignore_headers X-Accel-Redirect X-Accel-Expires X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset;
    grpc_buffer_size 64k;
    grpc_read_timeout 1d;
    grpc_send_timeout 1d;
    grpc_set_header Authorization "";
    grpc_ignore_headers X-Accel-Redirect X-Accel-Charset;
"#;

/// Flight's clients want refusals as gRPC's: in headers, with status 200. Other clients get 415, as gRPC's specification has it.
const ONE: &str = r#"    server {
        listen {FLIGHT_PORT} ssl http2;
        keepalive_timeout 1h;
        error_page 401 = @refused;
        error_page 415 @other;
        error_page 502 504 = @unavailable;
        location @other {
            keepalive_timeout 0;
            return 415;
        }
        location @refused {
            keepalive_timeout 0;
            default_type application/grpc;
            add_header grpc-status 16;
            add_header grpc-message "the gateway does not know the token";
            return 200;
        }
        location @unavailable {
            default_type application/grpc;
            add_header grpc-status 14;
            add_header grpc-message "the server of the functions does not answer";
            return 200;
        }
        location / {
            if ($is_grpc = 0) {
                return 415;
            }
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
            add_header WWW-Authenticate Bearer always;
            return 401;
        }
        location / {
            if ($may_call = 0) {
                return 401;
            }
            keepalive_timeout 1d;
            proxy_pass http://unix:{SOCKETS}/http.sock;
        }
        location = {HEALTH} {
            if ($request_method !~ "^(GET|HEAD)$") {
                return 405;
            }
            keepalive_timeout 0;
            client_max_body_size 1;
            limit_req zone=health burst=50 nodelay;
            limit_req_status 429;
            auth_request /greeting;
            try_files /dev/null =204;
        }
        location = /greeting {
            internal;
            proxy_pass_request_headers off;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_pass http://unix:{SOCKETS}/http.sock:/v1;
        }
    }
"#;

/// The configuration file of a gateway before these servers.
pub fn configuration(servers: &[Server]) -> String {
    let mut file = ALL.replace("{SECRETS}", SECRETS).replace("{TOKENS}", TOKENS);
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

/// The script that starts the gateway with the configuration at that path.
pub fn start(configuration: &str) -> String {
    START
        .replace("{SECRETS}", SECRETS)
        .replace("{TOKENS}", TOKENS)
        .replace("{MAX_TOKEN}", &MAX_TOKEN.to_string())
        .replace("{CONFIGURATION}", configuration)
}

/// Lines, indented so far, as a block of YAML.
pub fn indented(text: &str, spaces: usize) -> String {
    text.lines().fold(String::new(), |mut block, line| {
        let _ = writeln!(block, "{:spaces$}{line}", "");
        block
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What the gateway makes of a file of tokens: the map, or why it does not start.
    fn map_of(tokens: &[u8]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let (secrets, map) = (folder.path().to_str().unwrap(), folder.path().join("map"));
        std::fs::write(folder.path().join("tokens"), tokens).unwrap();
        let script = start("nginx.conf")
            .replace(SECRETS, secrets)
            .replace(TOKENS, map.to_str().unwrap())
            .replace("exec nginx -c nginx.conf -g 'daemon off;'", "exit 0");
        let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
        match ran.status.success() {
            true => Ok(std::fs::read_to_string(map).unwrap()),
            false => Err(String::from_utf8(ran.stderr).unwrap().replace(secrets, "")),
        }
    }

    #[test]
    fn a_token_stands_in_a_line() {
        let file = b"# of the database\r\n\r\nfirst\r\nA.b+c/d~_-0==\n\n#last\nlast";
        let map = "\"~^(?i:Bearer) first$\" 1;\n\"~^(?i:Bearer) A\\.b\\+c/d~_-0==$\" 1;\n\"~^(?i:Bearer) last$\" 1;\n";
        assert_eq!(map_of(file).unwrap(), map);
        assert!(map_of(&[b'x'; MAX_TOKEN]).is_ok());
    }

    #[test]
    fn what_is_no_token_is_no_configuration_either() {
        for file in ["", "\n", "# none\n\r\n"] {
            assert_eq!(map_of(file.as_bytes()).unwrap_err(), "gateway: /tokens has no token\n", "{file:?}");
        }
        let long = "x".repeat(MAX_TOKEN + 1);
        for line in [
            "\"Bearer first\" 1;",
            "a b",
            " a",
            "a ",
            "a;",
            "a\"",
            "a$",
            "a*",
            "(a)",
            "a\\",
            "{a}",
            "=",
            "=a",
            "a=b",
            "a\rb",
            "\u{e9}",
            "\u{feff}a",
            "a\tb",
            "$(id)",
            "`id`",
            "a|b",
            &long,
        ] {
            let error = map_of(format!("first\n{line}\nlast\n").as_bytes()).unwrap_err();
            assert!(error.starts_with("gateway: line 2 of /tokens is "), "{line:?}: {error}");
            assert!(!error.contains(line) || line.len() < 3, "{error}");
        }
        assert_eq!(map_of(b"fir\0st\n").unwrap_err(), "gateway: /tokens is not a text\n");
    }

    #[test]
    fn nothing_of_a_functions_server_steers_the_gateway() {
        let file = configuration(&[]);
        for words in ["proxy_ignore_headers X-Accel-Redirect ", "grpc_ignore_headers X-Accel-Redirect "] {
            assert!(file.contains(words), "{words} in {file}");
        }
    }
}
