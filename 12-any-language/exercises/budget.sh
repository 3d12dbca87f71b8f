#!/usr/bin/env bash
# budget.sh: decides for hook which PodDisruptionBudget an Icecream should have.
set -euo pipefail

# decide reads the question, and prints the answer.
decide() {
  jq -c '.parent as $ice | {
    children: [
      select($ice.spec.replicas >= 2) | {
        apiVersion: "policy/v1", kind: "PodDisruptionBudget", metadata: {name: $ice.metadata.name},
        spec: {maxUnavailable: 1, selector: {matchLabels: {"controller.nicoleh.io/uid": $ice.metadata.uid}}}
      }
    ]
  }'
}

decide
