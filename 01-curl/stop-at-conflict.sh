#!/usr/bin/env bash
# stop-at-conflict.sh: two writers at the same time. Their PUTs carry the
# resourceVersion that they have read, so nothing is lost: one of them gets 409, and
# gives up.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

race=/api/v1/namespaces/$NAMESPACE/configmaps/race

recreate "${race%/race}" race '{"metadata": {"name": "race"}, "data": {}}'

writer() { # writer NAME
  local round answer
  for round in {1..100}; do
    answer=$(api "$race" |
      jq --arg writer "$1" --arg round "$round" '.data[$writer] = $round' |
      api "$race" --request PUT --json @-)
    if [[ $(jq -r '.kind' <<<"$answer") == Status ]]; then
      jq -r --arg writer "$1" '"\($writer) stopped: \(.code) \(.reason)"' <<<"$answer"
      : >"$PKI/stopped"
      jq --exit-status '.code == 409' <<<"$answer" >/dev/null # or this writer has failed
      return
    fi
    # A writer that is alone has nobody to collide with.
    if [[ -e $PKI/stopped ]]; then return; fi
  done
}
writer anna &
anna=$!
writer bert &
failed=0
for pid in "$anna" $!; do wait "$pid" || failed=1; done # wait alone says nothing of a writer that failed
exit "$failed"
