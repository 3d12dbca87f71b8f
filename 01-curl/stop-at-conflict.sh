#!/usr/bin/env bash
# stop-at-conflict.sh: the loop of the 2018 slides, twice at the same time. PUT
# carries the resourceVersion that was read, so nothing is lost: the second of
# two writers gets 409. There its loop ends.
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
      return
    fi
    # A writer that is alone has nobody to collide with.
    if [[ -e $PKI/stopped ]]; then return; fi
  done
}
writer anna &
writer bert &
wait
