#!/usr/bin/env bash
# lost-update.sh: two writers PUT what they read, without its resourceVersion.
# Both get 200, and the first one's update is lost.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

board=/api/v1/namespaces/$NAMESPACE/configmaps/board

recreate "${board%/board}" board '{"metadata": {"name": "board"}, "data": {"start": "yes"}}'

# Both read the same state ...
anna=$(api "$board" --fail-with-body)
bert=$(api "$board" --fail-with-body)

# ... each adds a line to it, and puts all of it back.
put() { # put WRITER OBJECT
  jq --arg writer "$1" 'del(.metadata.resourceVersion) | .data[$writer] = "was here"' <<<"$2" |
    api "$board" --request PUT --json @- --output /dev/null --write-out "$1: HTTP %{http_code}\n"
}
put anna "$anna"
put bert "$bert"

api "$board" | jq -r '"in the cluster: \(.data | keys | join(", "))",
  (["anna", "bert"] - (.data | keys) | "lost: \(join(", "))")'
