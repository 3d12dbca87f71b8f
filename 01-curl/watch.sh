#!/usr/bin/env bash
# watch.sh RESOURCE_VERSION SECONDS: print what happened to the namespace's
# ConfigMaps after that version, and what happens in the next so many seconds.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

# The server sends one JSON object a line, for as long as it keeps the answer open.
api "/api/v1/namespaces/$NAMESPACE/configmaps?watch=true&resourceVersion=$1&timeoutSeconds=$2" --fail --no-buffer | # a refusal is no event
  jq --unbuffered -r '"\(.type) \(.object.metadata.name // .object.message) \(.object.data // {} | tojson)"'
