#!/usr/bin/env bash
# provoke.sh: have the server refuse a PUT with 409 Conflict.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

shared=/api/v1/namespaces/$NAMESPACE/configmaps/shared

# Print the answer to a PUT of the ConfigMap at $shared, which the server refuses because
# somebody has written the object since it was read.
provoke() {
  api "$shared" >"$PKI/read"
  api "$shared" --output /dev/null --request PATCH \
    --header "Content-Type: application/merge-patch+json" --data '{"data": {"bert": "was here"}}'
  api "$shared" --request PUT --json "@$PKI/read"
}

provoke >"$PKI/answer"
jq -r '"\(.code) \(.reason)"' "$PKI/answer"
