#!/usr/bin/env bash
# subresources.sh: status and scale are paths of their own, with their own rights
# and their own idea of what a write may change.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

deployments=/apis/apps/v1/namespaces/$NAMESPACE/deployments

patch() { # patch PATH BODY
  api "$1" --fail-with-body --request PATCH --header "Content-Type: application/strategic-merge-patch+json" --data "$2"
}

recreate "$deployments" scaled '{"metadata": {"name": "scaled"}, "spec": {"replicas": 0,
  "selector": {"matchLabels": {"app": "scaled"}},
  "template": {"metadata": {"labels": {"app": "scaled"}}, "spec": {"containers": [
    {"name": "web", "image": "workshop/pause:1", "imagePullPolicy": "Never"}]}}}}'

# Scale is the same small kind for everything that has replicas.
patch "$deployments/scaled/scale" '{"spec": {"replicas": 2}}' |
  jq -r '"scale: kind \(.kind), spec.replicas \(.spec.replicas)"'

# The controller writes conditions of its own.
until api "$deployments/scaled" | jq -e 'any(.status.conditions[]?; .type == "Available")' >/dev/null; do sleep 0.1; done

# Write the condition through the main endpoint ...
condition='{"type": "Audited", "status": "True", "reason": "ByHand", "message": ""}'
types='[.status.conditions[].type] | sort | join(", ")'
patch "$deployments/scaled" "{\"status\": {\"conditions\": [$condition]}}" |
  jq -r "\"main resource: conditions \($types)\""

# ... and through the /status endpoint, with a change to spec besides.
patch "$deployments/scaled/status" "{\"spec\": {\"replicas\": 9}, \"status\": {\"conditions\": [$condition]}}" |
  jq -r "\"status: conditions \($types); spec.replicas \(.spec.replicas)\""
