#!/usr/bin/env bash
# What `transship deploy` writes: judged by the validators of those who read it, docker-compose and Kubernetes' schemas, and run by
# docker-compose, where PostgreSQL calls the functions through the gateway.
source "$(dirname "$0")/environment.sh"

"$ROOT/scripts/packages.sh" docker-compose
"$ROOT/scripts/up.sh"
"$ROOT/scripts/docker.sh" gateway
source "$ROOT/scripts/environment.sh"
"$ROOT/scripts/python.sh" venv-kubernetes kubernetes-validate==1.37.0
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
"$ROOT/scripts/certificates.sh" "$place/tls"
cp "$place/tls/server.pem" "$place/gateway/certificate.pem"
cp "$place/tls/server.key" "$place/gateway/key.pem"
# As long as tokens of an identity provider may be.
token=$(printf 't%.0s' {1..900})
printf '"Bearer first" 1;\n"Bearer %s" 1;\n' "$token" > "$place/gateway/tokens"
chown -R 65534:65534 "$place/gateway"
chmod -R go= "$place/gateway"
"$BUILD/transship" deploy --target compose --flight-port 28815 --json-port 28825 deployed:1.0 > "$place/compose.yaml"
compose() { docker-compose --project-name transship-deploy --file "$place/compose.yaml" "$@" > "$place/compose.log" 2>&1 || { cat "$place/compose.log" >&2; exit 1; }; }
trap 'compose down --volumes' EXIT
compose up --detach
ask() { curl --silent --cacert "$place/tls/ca.pem" --max-time 10 --output "$place/answer" --write-out '%{http_code}' "$@" || true; }
for port in 28825 28826; do
  for _ in $(seq 300); do
    [ "$(ask "https://localhost:$port/healthz")" != 204 ] || break
    sleep 0.1
  done
  expect 204 "$(ask "https://localhost:$port/healthz")"
  [ ! -s "$place/answer" ]
  # Nothing but that is to be had without a token, or without TLS.
  for path in / /v1 /v1/functions/add_one /greeting /healthz/ /healthz/../v1 //v1 /%76%31; do
    expect 401 "$(ask --path-as-is "https://localhost:$port$path" | sed 's/404/401/')"
    ! grep -q add_one "$place/answer" || { echo "$path tells too much" >&2; exit 1; }
  done
  for header in "Bearer" "Bearer second" "Bearer firstfirst" "bearer  first" "first" "Basic Zmlyc3Q="; do
    expect 401 "$(ask --header "Authorization: $header" "https://localhost:$port/v1")"
  done
  expect 200 "$(ask --header "Authorization: Bearer first" "https://localhost:$port/v1")"
  expect 400 "$(ask --header "Authorization: Bearer first" "http://localhost:$port/v1")"
done
# A server has no network, and no secret of the gateway's.
for number in 1 2; do
  container=$(docker-compose --project-name transship-deploy --file "$place/compose.yaml" ps --quiet "deployed-$number" 2> /dev/null)
  expect "none [/run/functions]" "$(docker inspect --format '{{.HostConfig.NetworkMode}} {{range .Mounts}}[{{.Destination}}]{{end}}' "$container")"
done
query() { psql --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 --set ca="$(cat "$place/tls/ca.pem")" --set token="$token" 2>&1; }
answer=$(query <<'SQL'
SET client_min_messages = warning;
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
)
expect "sums|5000150000|5000150000|5000150000" "$answer"
expect "texts|30|90000030" "$answer"
expect "texts|101|10105151" "$answer"
# A server that starts again finds its old socket.
compose restart deployed-1 deployed-2
for port in 28825 28826; do
  for _ in $(seq 300); do
    [ "$(ask "https://localhost:$port/healthz")" != 204 ] || break
    sleep 0.1
  done
done
expect "5000150000" "$(query <<< 'SELECT sum(deployed.by_json(x)) FROM generate_series(1, 100000) x')"
refusal=$(query <<< "ALTER USER MAPPING FOR CURRENT_USER SERVER flight OPTIONS (SET token 'second');
    ALTER USER MAPPING FOR CURRENT_USER SERVER json OPTIONS (DROP token);
    DO \$\$ BEGIN PERFORM deployed.by_flight(1); EXCEPTION WHEN OTHERS THEN RAISE WARNING '% %', SQLSTATE, SQLERRM; END \$\$;
    DO \$\$ BEGIN PERFORM deployed.by_json(1); EXCEPTION WHEN OTHERS THEN RAISE WARNING '% %', SQLSTATE, SQLERRM; END \$\$;")
echo "$refusal"
query <<< 'SET client_min_messages = warning; DROP SCHEMA deployed CASCADE; DROP SERVER flight CASCADE; DROP SERVER json CASCADE'
say "The descriptions of deployments are valid, and what they run asks for tokens"
