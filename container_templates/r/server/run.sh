#!/bin/sh
# Runs the server. R does not hear SIGTERM: a file tells it to finish what is running, and to end.
TRANSSHIP_STOP_FILE=$(mktemp -u)
export TRANSSHIP_STOP_FILE
Rscript --vanilla "$(dirname "$0")/main.R" "$@" &
server=$!
trap 'touch "$TRANSSHIP_STOP_FILE"' TERM INT
while :; do
  # A signal ends the wait, not the server.
  wait "$server"
  status=$?
  kill -0 "$server" 2> /dev/null || break
done
rm -f "$TRANSSHIP_STOP_FILE"
exit "$status"
