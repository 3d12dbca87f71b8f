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
    --header "Content-Type: application/$1" --data-binary @- | jq -c '[.spec.template.spec.containers[]? | {name, image}]'
}

# JSON Patch: the image of the second container, which has to be log.
log() {
  patch json-patch+json <<JSON
[{"op": "test", "path": "/spec/template/spec/containers/1/name", "value": "log"},
 {"op": "replace", "path": "/spec/template/spec/containers/1/image", "value": "$1"}]
JSON
}

# Strategic merge patch: the image of the container web. The others stay.
web() {
  patch strategic-merge-patch+json <<JSON
{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "$1"}]}}}}
JSON
}

# JSON Merge Patch: the annotation owner. Other annotations stay.
owner() {
  patch merge-patch+json <<JSON
{"metadata": {"annotations": {"owner": "$1"}}}
JSON
}

# Server-side apply, as the field manager patch-sh: a container metrics with this
# image, and for web the image example/web:4, even if somebody else owns that.
metrics() {
  patch apply-patch+yaml "fieldManager=patch-sh&force=true" <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: patched}
spec:
  template:
    spec:
      containers:
      - {name: web, image: "example/web:4"}
      - {name: metrics, image: "$1"}
YAML
}

case $1 in
log | web | owner | metrics) "$1" "$2" ;;
*) echo "usage: patch.sh log|web|owner|metrics VALUE" >&2; exit 2 ;;
esac
