#!/usr/bin/env bash
# gone.sh: ask for history that the server does not have. It keeps a window of
# events for each resource, which starts when it begins to serve that resource;
# for one that is defined now, resourceVersion 1 is long before that. On older
# resources the same happens after a restart, or when etcd compacts its history.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

group=$NAMESPACE.k8s-go.openshift.org
definitions=/apis/apiextensions.k8s.io/v1/customresourcedefinitions
notes=/apis/$group/v1/namespaces/$NAMESPACE/notes

remove() { # ten seconds at most; it takes less than one
  local code
  api "$definitions/notes.$group" --request DELETE --output /dev/null
  for _ in {1..100}; do
    code=$(api "$definitions/notes.$group" --output /dev/null --write-out '%{http_code}')
    [[ $code != 404 ]] || return 0
    sleep 0.1
  done
  echo "gone.sh: the definition notes.$group is still there: $code" >&2
  return 1
}

remove # what a run that was killed has left
at_exit 'remove || :' # it has said why, and the rest goes, too
# By its label, the lesson finds what a run that was killed has left, and nobody else's.
api "$definitions" --fail-with-body --output /dev/null --json @- <<JSON
{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
 "metadata": {"name": "notes.$group", "labels": {"workshop.k8s-go.dev/step": "$NAMESPACE"}},
 "spec": {"group": "$group", "scope": "Namespaced", "names": {"plural": "notes", "kind": "Note"},
  "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}
JSON
for _ in {1..100}; do # as long, until the server knows the path
  api "$notes" --fail --output "$PKI/list" 2>/dev/null && break
  sleep 0.1
done

watch() { # watch RESOURCE_VERSION
  api "$notes?watch=true&resourceVersion=$1&timeoutSeconds=3" --fail | # an error is no event
    jq -r '"\(.type) \(.object.code // "") \(.object.reason // .object.metadata.name)"'
}

echo "watch from 1:"
watch 1

# The cure is always the same: list again, and watch from where the list ends.
api "$notes" >"$PKI/list"
api "$notes" --fail-with-body --json "{\"apiVersion\": \"$group/v1\", \"kind\": \"Note\", \"metadata\": {\"name\": \"seen\"}}" >/dev/null
echo "watch from the list:"
watch "$(jq -r '.metadata.resourceVersion' "$PKI/list")"
