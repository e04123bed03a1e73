#!/bin/sh
# Run the whole suite once. Its summary is the last thing printed, and its exit status is left in
# .cache/test-status, because make gives its own.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root" || exit 1
mkdir -p .cache
status=0
.venv/bin/python -m pytest || status=$?
echo "$status" >.cache/test-status
exit "$status"
