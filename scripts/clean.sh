#!/usr/bin/env bash
# Deletes everything that was built or made private.
source "$(dirname "$0")/environment.sh"
say "Deleting $PRIVATE and $ROOT/target"
rm -rf "$PRIVATE" "$ROOT/target"
