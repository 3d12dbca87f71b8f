#!/usr/bin/env bash
# page.sh LIMIT: print the names on the second page of the namespace's ConfigMaps.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

configmaps=/api/v1/namespaces/$NAMESPACE/configmaps

# second LIMIT: request the second page. The first one is in the file $PKI/first.
second() {
  api "$configmaps" --fail-with-body --get --data-urlencode "limit=$1" \
    --data-urlencode "continue=$(jq -r .metadata.continue "$PKI/first")"
}

api "$configmaps?limit=$1" --fail-with-body >"$PKI/first"
second "$1" >"$PKI/second"
jq -r '.items[].metadata.name' "$PKI/second"
