#!/usr/bin/env bash
# Looks at a manager under load as an operator does: metrics, Prometheus with the dashboard and the alerts, the status page in a browser,
# and the counters of PostgreSQL's backends.
source "$(dirname "$0")/../scripts/environment.sh"
export RUNTIME=process TRANSSHIP_RUNTIME=process

"$ROOT/scripts/packages.sh" prometheus chromium python3-yaml
bring_up
"$ROOT/scripts/python.sh" venv-grafana
"$ROOT/target/venv-grafana/bin/python" tests/dashboard_schema.py dashboards/manager.json
say "Observing a manager with Prometheus and a browser"
BUILD=$BUILD PATH=$PG_BIN:$PATH python3 tests/observability.py
