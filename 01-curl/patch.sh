#!/usr/bin/env bash
# patch.sh: the four patch types on one Deployment with two containers. Watch
# what each does to the list of containers.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

deployments=/apis/apps/v1/namespaces/$NAMESPACE/deployments

# patch TYPE DESCRIPTION [QUERY] <BODY
patch() {
  api "$deployments/patched?${3:-}" --fail-with-body --request PATCH \
    --header "Content-Type: application/$1" --data-binary @- |
    jq -r --arg what "$2" '"\($what): " + ([.spec.template.spec.containers[] | "\(.name)=\(.image)"] | join(" "))'
}

# No replicas, so that nobody looks for these images.
recreate "$deployments" patched '{"metadata": {"name": "patched"}, "spec": {"replicas": 0,
  "selector": {"matchLabels": {"app": "patched"}},
  "template": {"metadata": {"labels": {"app": "patched"}}, "spec": {"containers": [
    {"name": "web", "image": "example/web:1"},
    {"name": "log", "image": "example/log:1"}]}}}}'

# JSON Patch (RFC 6902): operations on paths. A list item has only its index, so
# the test operation makes sure that the index still means what it meant.
patch json-patch+json "json patch" <<'JSON'
[{"op": "test", "path": "/spec/template/spec/containers/1/name", "value": "log"},
 {"op": "replace", "path": "/spec/template/spec/containers/1/image", "value": "example/log:2"}]
JSON

# Strategic merge: Kubernetes' own; it knows that containers merge by name.
patch strategic-merge-patch+json "strategic merge patch" <<'JSON'
{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example/web:2"}]}}}}
JSON

# JSON Merge Patch (RFC 7386): a list is one value, and is replaced whole.
patch merge-patch+json "merge patch" <<'JSON'
{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example/web:3"}]}}}}
JSON

# Server-side apply: what this field manager wants, and nothing else. The server
# remembers who owns which field, so force takes the image of web from the others.
patch apply-patch+yaml "server-side apply" "fieldManager=patch-sh&force=true" <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: patched}
spec:
  template:
    spec:
      containers:
      - {name: web, image: "example/web:4"}
      - {name: metrics, image: "example/metrics:1"}
YAML
