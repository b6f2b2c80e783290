#!/usr/bin/env bash
# What `transship deploy` writes: judged by the validators of those who read it, docker-compose and Kubernetes' schemas, and run by
# docker-compose, where PostgreSQL calls the functions through the gateway.
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" docker-compose
bring_up
"$ROOT/scripts/docker.sh" gateway
"$ROOT/scripts/python.sh" venv-kubernetes
is() { [ "$1" = "$2" ] || { echo "expected \"$1\", not \"$2\"" >&2; exit 1; }; }
expect() { grep -qF -- "$1" <<< "$2" || { echo "expected \"$1\" in: $2" >&2; exit 1; }; }
build_image examples/samples
place=$ROOT/target/deploy
rm -rf "$place"
mkdir -p "$place/project" "$place/gateway"
sed '0,/^name = .*/s//name = "team\/networked_udf"/; $a [limits]\nnetwork = true' examples/samples/transship.toml > "$place/project/transship.toml"
cp examples/samples/handler.py "$place/project/"
build_image "$place/project"
for image in samples:1.0 team/networked_udf:1.0; do
  "$BUILD/transship" deploy --target compose --reference registry.example/udf:1.0 "$image" > "$place/compose.yaml"
  docker-compose --file "$place/compose.yaml" config --quiet
  "$BUILD/transship" deploy --target kubernetes "$image" > "$place/kubernetes.yaml"
  "$ROOT/target/venv-kubernetes/bin/kubernetes-validate" --strict "$place/kubernetes.yaml"
done

say "Calling functions of two deployed servers through their gateway"
sed '0,/^name = .*/s//name = "deployed"\nreplicas = 2/' examples/samples/transship.toml > "$place/project/transship.toml"
build_image "$place/project"
"$ROOT/tests/certificates.sh" "$place/tls"
cp "$place/tls/server.pem" "$place/gateway/certificate.pem"
cp "$place/tls/server.key" "$place/gateway/key.pem"
# As long as tokens of an identity provider may be.
token=$(printf 't%.0s' {1..900})
tokens() { cat > "$place/gateway/tokens"; chown 65534:65534 "$place/gateway/tokens"; chmod 600 "$place/gateway/tokens"; }
# With and without a carriage return, and the last without a newline.
printf '# of the tests\r\n\nfirst\r\na.b+c/d==\n%s' "$token" | tokens
chown -R 65534:65534 "$place/gateway"
chmod -R go= "$place/gateway"
"$BUILD/transship" deploy --target compose --flight-port 28815 --json-port 28825 deployed:1.0 > "$place/compose.yaml"
compose() { docker-compose --project-name transship-deploy --file "$place/compose.yaml" "$@" > "$place/compose.log" 2>&1 || { cat "$place/compose.log" >&2; exit 1; }; }
trap 'compose down --volumes' EXIT
compose up --detach
wait_for() { for _ in $(seq 300); do [ "$(ask "https://localhost:$1/healthz")" != "$2" ] || return 0; sleep 0.1; done; expect "$2" "$(ask "https://localhost:$1/healthz")"; }
# Bytes as they are to a port; the status lines of the answers, and whether the connection ended.
send() {
  python3 - "$place/tls/ca.pem" "$@" <<'PYTHON'
import re, socket, ssl, sys
authority, port, request = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
with context.wrap_socket(socket.create_connection(("localhost", int(port))), server_hostname="localhost") as connection:
    connection.settimeout(10)
    connection.sendall(request.encode().decode("unicode_escape").encode("latin-1"))
    answer, end = b"", "ended"
    try:
        while piece := connection.recv(65536):
            answer += piece
    except TimeoutError:
        end = "open"
    except OSError:
        pass
print(*re.findall(rb"^HTTP/1.1 (\d+)".decode(), answer.decode("latin-1"), re.M), end)
PYTHON
}
# What a gRPC client is told: the HTTP status and the headers.
ask_grpc() { curl --silent --http2 --cacert "$place/tls/ca.pem" --max-time 10 --output "$place/answer" --dump-header - --write-out 'sent=%{size_upload}' --request POST --header "content-type: application/grpc" "$@" | tr -d '\r' || true; }
ask() { curl --silent --cacert "$place/tls/ca.pem" --max-time 10 --output "$place/answer" --write-out '%{http_code}' "$@" || true; }
for port in 28825 28826; do
  wait_for "$port" 204
  [ ! -s "$place/answer" ]
  # Nothing but that is to be had without a token, or without TLS.
  for path in / /v1 /v1/functions/add_one /greeting /healthz/ /healthz/../v1 //v1 /%76%31; do
    expect 401 "$(ask --path-as-is "https://localhost:$port$path" | sed 's/404/401/')"
    ! grep -q add_one "$place/answer" || { echo "$path tells too much" >&2; exit 1; }
  done
  for header in "Bearer" "Bearer second" "Bearer First" "Bearer firstfirst" "bearer  first" "first" "Basic Zmlyc3Q=" "Bearer # of the tests" \
    "Bearer axb+c/d==" "Bearer a.bbc/d==" "Bearer $"; do
    expect 401 "$(ask --header "Authorization: $header" "https://localhost:$port/v1")"
  done
  for header in "Bearer first" "bearer first" "Bearer a.b+c/d==" "Bearer $token"; do
    expect 200 "$(ask --header "Authorization: $header" "https://localhost:$port/v1")"
  done
  # Two tokens are none, nobody gets at what is the gateway's own, and a health check is nothing but that.
  expect 400 "$(ask --header "Authorization: Bearer second" --header "Authorization: Bearer first" "https://localhost:$port/v1")"
  expect 404 "$(ask --header "Authorization: Bearer first" "https://localhost:$port/greeting")"
  expect 401 "$(ask --request-target http://localhost/v1 "https://localhost:$port/")"
  expect 401 "$(ask --header "Connection: Upgrade" --header "Upgrade: websocket" "https://localhost:$port/v1")"
  expect 405 "$(ask --request TRACE --header "Authorization: Bearer first" "https://localhost:$port/v1")"
  expect 400 "$(ask --request CONNECT --request-target localhost:80 --header "Authorization: Bearer first" "https://localhost:$port/")"
  expect 400 "$(ask --header "X: $(printf 'x%.0s' {1..9000})" --header "Authorization: Bearer first" "https://localhost:$port/v1")"
  expect 405 "$(ask --request POST "https://localhost:$port/healthz")"
  expect 413 "$(ask --data xy "https://localhost:$port/healthz")"
  # A body is no further request: not of one who is refused, and not in any other way.
  inner='GET /v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\n\r\n'
  is "401 ended" "$(send "$port" "POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 58\r\n\r\n$inner")"
  is "204 ended" "$(send "$port" "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3a\r\n$inner\r\n0\r\n\r\n")"
  for head in "Content-Length: 5\r\nTransfer-Encoding: chunked" "Content-Length: 0\r\nContent-Length: 5"; do
    is "400 ended" "$(send "$port" "POST /v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\n$head\r\n\r\n0\r\n\r\n$inner")"
  done
  is "501 ended" "$(send "$port" "POST /v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n$inner")"
  is "400 ended" "$(send "$port" "GET /v1 HTTP/1.1\r\nHost: x\r\nAuthorization:\r\n Bearer first\r\n\r\n")"
  expect 400 "$(ask --header "Authorization: Bearer first" "http://localhost:$port/v1")"
done
# gRPC's clients are refused in their own words, before their messages are read; others get nothing there.
head -c 50000000 /dev/zero > "$place/large"
for port in 28815 28816; do
  for header in "X: none" "Authorization: Bearer First"; do
    answer=$(ask_grpc --header "$header" --data-binary "@$place/large" "https://localhost:$port/arrow.flight.protocol.FlightService/DoExchange")
    expect "HTTP/2 200" "$answer"
    expect "grpc-status: 16" "$answer"
    [ "${answer##*sent=}" -lt 50000000 ]
  done
  expect 415 "$(ask --http2 --header "Authorization: Bearer first" "https://localhost:$port/v1")"
  expect 415 "$(ask --http2 --header "Authorization: Bearer first" --header "content-type: application/grpc-web" "https://localhost:$port/v1")"
done
# The gateway and the servers are locked down alike.
for service in deployed deployed-1; do
  container=$(docker-compose --project-name transship-deploy --file "$place/compose.yaml" ps --quiet "$service" 2> /dev/null)
  expect "65534:65534 true [ALL] [no-new-privileges:true] private" \
    "$(docker inspect --format '{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}} {{.HostConfig.IpcMode}}' "$container")"
  expect "true map[max-file:2 max-size:10m] 67108864" \
    "$(docker inspect --format '{{eq .HostConfig.Memory .HostConfig.MemorySwap}} {{.HostConfig.LogConfig.Config}} {{.HostConfig.ShmSize}}' "$container")"
  expect "noexec,nosuid,nodev,size=" "$(docker inspect --format '{{.HostConfig.Tmpfs}}' "$container")"
done
# A server has no network, and no secret of the gateway's.
for number in 1 2; do
  container=$(docker-compose --project-name transship-deploy --file "$place/compose.yaml" ps --quiet "deployed-$number" 2> /dev/null)
  expect "none [/run/functions]" "$(docker inspect --format '{{.HostConfig.NetworkMode}} {{range .Mounts}}[{{.Destination}}]{{end}}' "$container")"
done
query() { psql --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 --set ca="$(cat "$place/tls/ca.pem")" --set token="$token" 2>&1; }
answer=$(query <<'SQL'
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS transship;
DROP SCHEMA IF EXISTS deployed CASCADE;
DROP SERVER IF EXISTS flight CASCADE;
DROP SERVER IF EXISTS json CASCADE;
CREATE SCHEMA deployed;
SET search_path = deployed;
CREATE SERVER flight FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'grpcs://localhost:28815,grpcs://localhost:28816', ca :'ca');
CREATE SERVER json FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'https://localhost:28825,https://localhost:28826', ca :'ca');
CREATE USER MAPPING FOR CURRENT_USER SERVER flight OPTIONS (token 'first');
CREATE USER MAPPING FOR CURRENT_USER SERVER json OPTIONS (token :'token');
CREATE FUNCTION by_flight(x bigint) RETURNS bigint LANGUAGE container AS 'server = "flight" function = "add_one"';
CREATE FUNCTION by_json(x bigint) RETURNS bigint LANGUAGE container AS 'server = "json" function = "add_one"';
CREATE FUNCTION by_columns(x bigint) RETURNS bigint LANGUAGE container AS 'server = "json" function = "add_one" transport = "socket"';
CREATE FUNCTION loud(text) RETURNS text LANGUAGE container AS 'server = "json" function = "shout" transport = "socket"';
SELECT 'sums', sum(by_flight(x)), sum(by_json(x)), sum(by_columns(x)) FROM generate_series(1, 100000) x;
-- Larger than any buffer of the gateway, the same in every row, and in many batches.
SELECT 'texts', count(*), sum(length(loud(repeat('x', 3000000)))) FROM generate_series(1, 30);
SELECT 'texts', count(*), sum(length(loud(repeat('x', x)))) FROM generate_series(100000, 100100) x;
SQL
) || { echo "$answer" >&2; exit 1; }
expect "sums|5000150000|5000150000|5000150000" "$answer"
expect "texts|30|90000030" "$answer"
expect "texts|101|10105151" "$answer"
# A server that starts again finds its old socket.
compose restart deployed-1 deployed-2
for port in 28825 28826; do
  wait_for "$port" 204
done
expect "5000150000" "$(query <<< 'SELECT sum(deployed.by_json(x)) FROM generate_series(1, 100000) x')"
refusal=$(query <<< "ALTER USER MAPPING FOR CURRENT_USER SERVER flight OPTIONS (SET token 'second');
    ALTER USER MAPPING FOR CURRENT_USER SERVER json OPTIONS (DROP token);
    DO \$\$ BEGIN PERFORM deployed.by_flight(1); EXCEPTION WHEN OTHERS THEN RAISE WARNING '% %', SQLSTATE, SQLERRM; END \$\$;
    DO \$\$ BEGIN PERFORM deployed.by_json(1); EXCEPTION WHEN OTHERS THEN RAISE WARNING '% %', SQLSTATE, SQLERRM; END \$\$;")
[ "$(grep -c '42501 permission denied by the server of container function "add_one"' <<< "$refusal")" = 2 ] || { echo "$refusal" >&2; exit 1; }
say "Calling a server that is down"
compose stop deployed-1
expect "grpc-status: 14" "$(ask_grpc --header "Authorization: Bearer first" "https://localhost:28815/arrow.flight.protocol.FlightService/DoAction")"
expect 502 "$(ask --header "Authorization: Bearer first" "https://localhost:28825/v1")"
expect 500 "$(ask "https://localhost:28825/healthz")"
say "Starting the gateway with files that are no tokens"
# What the gateway of a file says is asked until it is there: a container that has started may not have got to the file yet.
gateway_says() {
  for _ in $(seq 300); do
    ! docker-compose --project-name transship-deploy --file "$place/compose.yaml" logs --tail 20 deployed 2> /dev/null | grep -qF "gateway: $1" || return 0
    sleep 0.1
  done
  docker-compose --project-name transship-deploy --file "$place/compose.yaml" logs deployed >&2
  exit 1
}
while IFS='|' read -r line why; do
  tokens <<< "$line"
  docker-compose --project-name transship-deploy --file "$place/compose.yaml" restart deployed > /dev/null 2>&1 || true
  gateway_says "$why"
  expect 000 "$(ask --header "Authorization: Bearer first" "https://localhost:28826/v1")"
done << REFUSED
"Bearer first" 1;|line 1 of /run/gateway/tokens is no token
# none|/run/gateway/tokens has no token
$(printf 'x%.0s' {1..3901})|line 1 of /run/gateway/tokens is longer than 3900 characters
REFUSED
tokens <<< other
compose restart deployed
wait_for 28826 204
expect 200 "$(ask --header "Authorization: Bearer other" "https://localhost:28826/v1")"
expect 401 "$(ask --header "Authorization: Bearer first" "https://localhost:28826/v1")"
query <<< 'SET client_min_messages = warning; DROP SCHEMA deployed CASCADE; DROP SERVER flight CASCADE; DROP SERVER json CASCADE'
say "The descriptions of deployments are valid, and what they run asks for tokens"
