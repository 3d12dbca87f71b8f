#!/usr/bin/env bash
# fold.sh RESOURCE_VERSION: read what has happened to the ConfigMaps after this version,
# and in the next second, and print the names that are left.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

names=$PKI/names # one a line
: >"$names"

# event TYPE NAME: keep the file $names right. Return 1 if the server reports an error.
event() {
  case $1 in
  ADDED) echo "$2" >>"$names" ;;
  DELETED)
    grep -vxF -- "$2" "$names" >"$names.new" || :
    mv "$names.new" "$names"
    ;;
  ERROR) return 1 ;;
  esac
}

api "/api/v1/namespaces/$NAMESPACE/configmaps?watch=true&resourceVersion=$1&timeoutSeconds=1" --fail --no-buffer |
  jq -r '"\(.type) \(.object.metadata.name // .object.message)"' >"$PKI/events"
while read -r type name; do
  event "$type" "$name" || {
    echo "fold.sh: $name" >&2
    exit 1
  }
done <"$PKI/events"
sort "$names"
