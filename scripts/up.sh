#!/usr/bin/env bash
# Brings up what every other script needs: packages, the build, the extension, the private cluster and manager.
# RUNTIME=docker starts a Docker daemon where none answers.
source "$(dirname "$0")/environment.sh"

"$ROOT/scripts/packages.sh" postgresql-15 postgresql-server-dev-15 clang libclang-dev python3-venv openssl ca-certificates
if [ "$TRANSSHIP_RUNTIME" = docker ]; then
  "$ROOT/scripts/docker.sh" start
  find_docker
fi
"$ROOT/scripts/install.sh"
"$ROOT/scripts/cluster.sh" start
"$ROOT/scripts/manager.sh" start
