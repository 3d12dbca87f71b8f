#!/usr/bin/env bash
# follow.sh: print which ConfigMaps the namespace has, "+ NAME" for each that comes
# and "- NAME" for each that goes, until it is stopped. Whoever reads the lines can
# keep a mirror of the namespace.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

configmaps=/api/v1/namespaces/$NAMESPACE/configmaps
mirror=$PKI/mirror # the names that are printed as there, sorted, one a line
version=           # of the last list or event
: >"$mirror"

# List, print what differs from the mirror, and remember the list's version.
compare() {
  api "$configmaps" --fail-with-body >"$PKI/list"
  version=$(jq -r '.metadata.resourceVersion' "$PKI/list")
  jq -r '.items[].metadata.name' "$PKI/list" | LC_ALL=C sort >"$PKI/names"
  LC_ALL=C comm -13 "$mirror" "$PKI/names" | sed 's/^/+ /'
  LC_ALL=C comm -23 "$mirror" "$PKI/names" | sed 's/^/- /'
  mv "$PKI/names" "$mirror"
}

# Print what comes and goes after the version, until the connection ends. Return 1
# if the server no longer has the history.
follow() {
  local type name rv
  while read -r type name rv; do
    case $type in
    ADDED)
      echo "+ $name"
      echo "$name" | LC_ALL=C sort -o "$mirror" - "$mirror"
      ;;
    DELETED)
      echo "- $name"
      grep -vxF -- "$name" "$mirror" >"$PKI/names" || :
      mv "$PKI/names" "$mirror"
      ;;
    ERROR) return 1 ;;
    esac
    version=$rv
  done < <(events)
}

# events prints "TYPE NAME RESOURCE_VERSION" for each event after the version.
events() {
  api "$configmaps?watch=true&resourceVersion=$version&timeoutSeconds=60" --no-buffer --fail | # an error is no event
    jq --unbuffered -r '"\(.type) \(.object.metadata.name // .object.code) \(.object.metadata.resourceVersion // "")"'
}

while :; do
  compare
  while follow; do sleep 0.2; done # the connection ended; a server that is down is not hurried
done
