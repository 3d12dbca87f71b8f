#!/usr/bin/env bash
# pages.sh LIMIT: list the ConfigMaps of the namespace page by page. Names go
# to standard output, what each page said to standard error.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

continue="" page=0
while
  list=$(api "/api/v1/namespaces/$NAMESPACE/configmaps" --fail-with-body --get \
    --data-urlencode "limit=$1" --data-urlencode "continue=$continue") || exit # set -e holds in no condition
  jq -r '.items[].metadata.name' <<<"$list"
  jq -r --arg page "$((++page))" \
    '"page \($page): \(.items | length) objects, \(.metadata.remainingItemCount // 0) remain"' <<<"$list" >&2
  # The token is opaque, and as short-lived as etcd's history.
  continue=$(jq -r '.metadata.continue // ""' <<<"$list")
  [[ -n $continue ]]
do :; done
