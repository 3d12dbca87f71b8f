#!/usr/bin/env bash
# watch.sh RESOURCE_VERSION SECONDS: print what happened to the namespace's
# ConfigMaps after that version, and what goes on happening for so many seconds.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

# One JSON object a line, for as long as the server keeps the answer open.
api "/api/v1/namespaces/$NAMESPACE/configmaps?watch=true&resourceVersion=$1&timeoutSeconds=$2" --no-buffer |
  jq --unbuffered -r '"\(.type) \(.object.metadata.name // .object.message) \(.object.data // {} | tojson)"'
