#!/usr/bin/env bash
# errors.sh: provoke the errors that every client meets. Each answer is an
# object of kind Status; programs look at its reason, people at its message.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

configmaps=/api/v1/namespaces/$NAMESPACE/configmaps

# status prints an answer's code, reason and message.
status() { jq -r '"\(.code) \(.reason): \(.message)"'; }

# without_credentials PATH [curl option...]: a request that does not say who sends it
without_credentials() {
  local path=$1
  shift
  curl -q --config "$PKI/curl-without-credentials" "$@" "$SERVER$path"
}

api "$configmaps/missing" | status

recreate "$configmaps" errors '{"metadata": {"name": "errors"}}'
api "$configmaps" --json '{"metadata": {"name": "errors"}}' | status

api "$configmaps/errors" | jq '.metadata.resourceVersion = "1"' |
  api "$configmaps/errors" --request PUT --json @- | status

api "$configmaps" --json '{"metadata": {"name": "Not_A_Name"}}' | status

api "$configmaps" --json 'not json' | status

# A service account without any role, and a token for it.
recreate "/api/v1/namespaces/$NAMESPACE/serviceaccounts" nobody '{"metadata": {"name": "nobody"}}'
api "/api/v1/namespaces/$NAMESPACE/serviceaccounts/nobody/token" --fail-with-body \
  --json '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}' |
  jq -r '"Authorization: Bearer \(.status.token)"' >"$PKI/nobody"
without_credentials "$configmaps" --header "@$PKI/nobody" | status

without_credentials "$configmaps" --header "Authorization: Bearer wrong" | status
