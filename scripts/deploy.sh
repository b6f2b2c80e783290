#!/usr/bin/env bash
# What `transship deploy` writes is judged by the validators of those who read it: docker-compose and Kubernetes' schemas.
source "$(dirname "$0")/environment.sh"

"$ROOT/scripts/up.sh"
source "$ROOT/scripts/environment.sh"
"$ROOT/scripts/packages.sh" docker-compose
"$ROOT/scripts/python.sh" venv-kubernetes kubernetes-validate==1.37.0
build_image examples/samples
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
sed '0,/^name = .*/s//name = "team\/networked_udf"/; $a [limits]\nnetwork = true' examples/samples/transship.toml > "$folder/transship.toml"
cp examples/samples/handler.py "$folder/"
build_image "$folder"
for image in samples:1.0 team/networked_udf:1.0; do
  "$BUILD/transship" deploy --target compose --reference registry.example/udf:1.0 "$image" > "$folder/compose.yaml"
  docker-compose --file "$folder/compose.yaml" config --quiet
  "$BUILD/transship" deploy --target kubernetes "$image" > "$folder/kubernetes.yaml"
  "$ROOT/target/venv-kubernetes/bin/kubernetes-validate" --strict "$folder/kubernetes.yaml"
done
say "The descriptions of deployments are valid"
