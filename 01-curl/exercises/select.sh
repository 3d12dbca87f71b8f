#!/usr/bin/env bash
# select.sh: print the names of the ConfigMaps that a label selector selects.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

# Print the selector: the label tier is web or db, and there is no label retired.
selector() {
  echo 'tier in (web,db),!retired'
}

selector >"$PKI/selector"
api "/api/v1/namespaces/$NAMESPACE/configmaps" --fail-with-body --get \
  --data-urlencode "labelSelector=$(<"$PKI/selector")" | jq -r '.items[].metadata.name'
