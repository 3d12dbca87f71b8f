#!/usr/bin/env bash
# drift.sh IMAGE: a scorecard test in bash. It changes the image of a Deployment that the
# operator has made, and expects IMAGE back within ten seconds. It prints a TestStatus.
set -uo pipefail
ice=drift-$RANDOM
k() { kubectl --namespace "$SCORECARD_NAMESPACE" "$@"; }

# result STATE [ERROR]: the only line of the standard output.
result() {
  jq -n --arg state "$1" --arg error "${2:-}" '{results: [{name: "drift", state: $state, errors: [$error | select(. != "")]}]}'
}
trap 'k delete icecream "$ice" --ignore-not-found >&2' EXIT

image() { k get deployment "$ice" -o 'jsonpath={.spec.template.spec.containers[0].image}'; }
if ! k create -f - >&2 <<<"{apiVersion: controller.nicoleh.io/v1alpha1, kind: Icecream, metadata: {name: $ice}, spec: {deploymentName: $ice, replicas: 0}}"; then
  result error "the Icecream cannot be created"
elif ! k wait --for=condition=Available "icecream/$ice" --timeout=10s >&2; then
  result fail "the Icecream was not available within 10 s"
elif ! k set image "deployment/$ice" icecream=workshop/other:1 >&2; then
  result error "the Deployment cannot be changed"
elif k wait --for=jsonpath='{.spec.template.spec.containers[0].image}'="$1" "deployment/$ice" --timeout=10s >&2; then
  result pass
else
  result fail "the image was $(image) for 10 s, and not $1"
fi
