#!/usr/bin/env bash
# Tests push and pull against a registry of its own, which asks for a password and speaks TLS.
source "$(dirname "$0")/../scripts/environment.sh"

"$ROOT/scripts/packages.sh" docker-registry apache2-utils openssl
bring_up
say "Pushing to a registry and pulling from it"
place=$ROOT/target/registry
rm -rf "$place"
mkdir -p "$place/data" "$place/config"
"$ROOT/tests/certificates.sh" "$place/tls"
htpasswd -Bbn founder s3cret > "$place/htpasswd"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat > "$place/config.yml" <<YML
version: 0.1
storage: { filesystem: { rootdirectory: $place/data } }
http: { addr: "127.0.0.1:$port", tls: { certificate: $place/tls/server.pem, key: $place/tls/server.key } }
auth: { htpasswd: { realm: transship, path: $place/htpasswd } }
YML
docker-registry serve "$place/config.yml" > "$place/log" 2>&1 &
registry=$!
trap 'kill $registry' EXIT
for _ in $(seq 100); do (: > "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break; sleep 0.1; done

# Who logs in here is nobody elsewhere.
export DOCKER_CONFIG=$place/config
transship=$BUILD/transship
reference=localhost:$port/team/samples
expect() { grep -qF -- "$1" <<< "$2" || { echo "expected \"$1\" in: $2" >&2; exit 1; }; }
fails() { ! "$@" 2>&1 || { echo "$* did not fail" >&2; exit 1; }; }

build_image examples/samples
digest=$("$transship" build examples/samples 2> /dev/null | cut -d' ' -f2)
# An unchanged project builds nothing, and its files have a tag of their own.
[ -z "$("$transship" build examples/samples 2>&1 > /dev/null)" ] || { echo "an unchanged project was built again" >&2; exit 1; }
content=$(docker image inspect --format '{{index .Config.Labels "org.transship.content"}}' samples:1.0)
[ "$(docker image inspect --format '{{.Id}}' "samples:${content:0:16}")" = "$digest" ]
# A changed model builds the layer of the project's files, once, and keeps the functions' signatures.
cp -r examples/samples "$place/project"
sed -i 's/^name = "samples"/name = "changed-model"\nfiles = ["model.txt"]/' "$place/project/transship.toml"
# No builder has seen this model before.
model=$(date +%s%N)
echo "$model, first" > "$place/project/model.txt"
"$transship" build "$place/project" > "$place/build" 2>&1
before=$("$transship" ddl changed-model:1.0)
echo "$model, second" > "$place/project/model.txt"
"$transship" build "$place/project" > "$place/build" 2>&1
[ "$(grep --count 'Successfully built' "$place/build")" = 1 ]
[ "$(grep --after-context 1 '^Step .* : [^LF]' "$place/build" | grep --count --invert-match 'Using cache\|^Step\|^--$')" = 1 ] \
  || { echo "a changed model built more than its layer:" >&2; cat "$place/build" >&2; exit 1; }
[ "$(docker run --rm --entrypoint cat changed-model:1.0 /opt/transship/function/model.txt)" = "$model, second" ]
[ "$("$transship" ddl changed-model:1.0)" = "$before" ]
expect "docker login" "$(fails "$transship" push samples:1.0 "$reference:1.0")"
docker login --username founder --password-stdin "localhost:$port" <<< s3cret > /dev/null 2>&1
pushed=$("$transship" push samples:1.0 "$reference:1.0")
expect "$reference@sha256:" "$pushed"
expect "does not exist" "$(fails "$transship" push no_such:1 "$reference:2")"
expect "is not a reference" "$(fails "$transship" pull -- --all-tags)"

# The manager uses the caller's login, and keeps it nowhere.
! grep -qF -e s3cret -e "$(printf founder:s3cret | base64)" "$PRIVATE/m/log" || { echo "the manager's log has a login" >&2; exit 1; }
expect "docker login" "$(DOCKER_CONFIG=$place fails "$transship" push samples:1.0 "$reference:1.0")"

# The image goes, and comes back by its digest as what it was. Replicas that earlier tests left would keep it.
"$ROOT/scripts/manager.sh" stop
"$ROOT/scripts/manager.sh" start
docker image rm --force "$digest" > /dev/null
expect "does not exist" "$(fails "$transship" ddl samples:1.0)"
expect "samples:1.0 $digest" "$("$transship" pull "$pushed")"
[ "$(docker image inspect --format '{{.Id}}' "samples:${content:0:16}")" = "$digest" ]
expect "largest_prime_factor" "$("$transship" ddl samples:1.0)"
expect "0 failed" "$("$transship" conformance --quiet samples:1.0)"
# A name that stands for another image here is not taken from it, unless that is said.
docker image tag changed-model:1.0 samples:1.0
expect "another image has that name here" "$(fails "$transship" pull "$pushed")"
[ "$(docker image inspect --format '{{.Id}}' samples:1.0)" != "$digest" ]
expect "samples:1.0 $digest" "$("$transship" pull --replace "$pushed")"
# Nor is the tag by which it was pulled, which docker moves first: it names what it named, or nothing.
id_of() { docker image inspect --format '{{.Id}}' "$1"; }
docker image tag changed-model:1.0 samples:1.0
docker image rm "$reference:1.0" > /dev/null 2>&1 || true
expect "another image has that name here" "$(fails "$transship" pull "$reference:1.0")"
! id_of "$reference:1.0" > /dev/null 2>&1 || { echo "a refused pull left its tag" >&2; exit 1; }
docker image tag changed-model:1.0 "$reference:1.0"
expect "another image has that name here" "$(fails "$transship" pull "$reference:1.0")"
[ "$(id_of "$reference:1.0")" = "$(id_of changed-model:1.0)" ]
expect "samples:1.0 $digest" "$("$transship" pull --replace "$reference:1.0")"
[ "$(id_of "$reference:1.0")" = "$digest" ] && [ "$(id_of samples:1.0)" = "$digest" ]
# Inline code is built here, and never pulled.
manifest=$(docker image inspect --format '{{index .Config.Labels "org.transship.manifest"}}' samples:1.0)
inline=${manifest/\"samples\"/\"transship-inline\"}
docker build --quiet --label "org.transship.manifest=$inline" --tag "$reference:inline" - <<< "FROM samples:1.0" > /dev/null
docker push --quiet "$reference:inline" > /dev/null
docker image rm "$reference:inline" > /dev/null
expect "are only built here" "$(fails "$transship" pull --replace "$reference:inline")"
expect "are only built here" "$(fails "$transship" pull transship-inline:1)"
! id_of "$reference:inline" > /dev/null 2>&1 || { echo "a refused pull left its tag" >&2; exit 1; }
# Whoever looks at signatures is asked first, about a digest.
expect "samples:1.0 $digest" "$("$transship" pull --verify "test -n" "$pushed")"
expect "could not verify image" "$(fails env TRANSSHIP_VERIFY="test -z" "$transship" pull "$pushed")"
expect "names no digest" "$(fails "$transship" pull --verify "test -n" "$reference:1.0")"
# What is no UDF image is told so.
docker image tag debian:bookworm-slim "$reference:plain"
docker push --quiet "$reference:plain" > /dev/null
expect "is not a UDF image" "$(fails "$transship" pull "$reference:plain")"
docker image rm --force "$reference:plain" > /dev/null

# A base that is pinned by its registry's digest is pulled and built on, whatever its tag names.
mkdir -p "$place/templates/tiny" "$place/tiny"
printf 'project = ["transship.toml", "handler.py"]\n' > "$place/templates/tiny/template.toml"
cat > "$place/templates/tiny/Dockerfile" <<'DOCKERFILE'
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY manifest.json /
ENTRYPOINT ["/bin/sh", "-c", "cat /manifest.json"]
DOCKERFILE
cat > "$place/tiny/transship.toml" <<TOML
name = "pinned"
template = "tiny"
handler = "handler.py"
functions = [{ name = "f", arguments = ["int8"], returns = "int8" }]
TOML
touch "$place/tiny/handler.py"
docker build --quiet --tag "$reference:base" - <<< "FROM debian:bookworm-slim
RUN echo '$model' > /base" > /dev/null
docker push --quiet "$reference:base" > /dev/null
base=$(docker image inspect --format '{{index .RepoDigests 0}}' "$reference:base")
first_layers=$(docker image inspect --format '{{json .RootFS.Layers}}' "$base")
docker image rm --force "$(id_of "$reference:base")" > /dev/null
# By a manager that builds on it, and gets it with its own login.
build_pinned() (
  own=$(mktemp -d /tmp/ts-XXXXXX)
  trap 'kill "$own_manager"; wait "$own_manager" || true; rm -rf "$own"' EXIT
  start_own_manager "$own" --templates "$place/templates" --base-image "debian:bookworm-slim=$1"
  "$transship" build "$place/tiny" 2>&1
)
pinned=$(build_pinned "$base" | tail -n 1 | cut -d' ' -f2)
[ "$(docker run --rm --entrypoint cat "$pinned" /base)" = "$model" ]
expect "${first_layers%]}" "$(docker image inspect --format '{{json .RootFS.Layers}}' "$pinned")"
# One that the registry does not have ends the build, which leaves the image as it was.
expect "could not build image" "$(fails build_pinned "$reference@sha256:$(printf '0%.0s' $(seq 64))")"
[ "$(id_of pinned:latest)" = "$pinned" ]
docker image rm --force "$pinned" > /dev/null
echo "Pushed, removed and pulled $digest"
