#!/usr/bin/env bash
# patch.sh log|web|owner|metrics VALUE: one change of the Deployment "patched", which
# has the containers web and log. Each uses another of the four patch types.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

deployment=/apis/apps/v1/namespaces/$NAMESPACE/deployments/patched

# patch TYPE [QUERY] <BODY
patch() {
  api "$deployment?${2:-}" --fail-with-body --request PATCH \
    --header "Content-Type: application/$1" --data-binary @- | jq -c '[.spec.template.spec.containers[]? | {name, image, args, env}]'
}

# JSON Patch: the second argument of the second container, which has to be log.
log() {
  patch json-patch+json <<JSON
[{"op": "test", "path": "/spec/template/spec/containers/1/name", "value": "log"},
 {"op": "replace", "path": "/spec/template/spec/containers/1/args/1", "value": "$1"}]
JSON
}

# Strategic merge patch: the image of the container web, and its variable MODE, which
# becomes "test". Its other variables and the other containers stay.
web() {
  patch strategic-merge-patch+json <<JSON
{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "$1", "env": [{"name": "MODE", "value": "test"}]}]}}}}
JSON
}

# JSON Merge Patch: the annotation owner. Other annotations stay.
owner() {
  patch merge-patch+json <<JSON
{"metadata": {"annotations": {"owner": "$1"}}}
JSON
}

# Server-side apply, as the field manager patch-sh: a container metrics with this image,
# and revisionHistoryLimit 3 in the spec, even if somebody else owns that.
metrics() {
  patch apply-patch+yaml "fieldManager=patch-sh&force=true" <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: patched}
spec:
  revisionHistoryLimit: 3
  template:
    spec:
      containers:
      - {name: metrics, image: "$1"}
YAML
}

case $1 in
log | web | owner | metrics) "$1" "$2" ;;
*) echo "usage: patch.sh log|web|owner|metrics VALUE" >&2; exit 2 ;;
esac
