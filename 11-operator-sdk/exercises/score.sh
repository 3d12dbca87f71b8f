#!/usr/bin/env bash
# score.sh: a scorecard test for an operator of HealthCheckPolicies. It prints a TestStatus.
set -uo pipefail
k() { kubectl --namespace "$SCORECARD_NAMESPACE" "$@"; }

# result STATE [ERROR]
result() {
  jq -n --arg state "$1" --arg error "${2:-}" '{results: [{name: "score", state: $state, errors: [$error | select(. != "")]}]}'
}

# pod NAME APP PROBES: a pod with the test's own label, which ends at once.
pod() {
  k create -f - >&2 <<<"{apiVersion: v1, kind: Pod, metadata: {name: $1, labels: {score: $name, app: $2}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: 'workshop/pause:1'$3}]}}"
}

# marked NAME: has the pod the mark of the policy? If nobody can tell, the test has not been run.
marked() {
  local mark
  if ! mark=$(k get pod "$1" -o "jsonpath={.metadata.labels.$name}"); then
    result error "the pod $1 cannot be read"
    exit
  fi
  [[ -n $mark ]]
}

score() {
  local name=score-$RANDOM probe end
  # shellcheck disable=SC2064 # the name of now
  trap "k delete healthcheckpolicy,pod -l score=$name --wait=false >&2" EXIT
  probe=', livenessProbe: {tcpSocket: {port: 80}, initialDelaySeconds: 3600}, readinessProbe: {tcpSocket: {port: 80}, initialDelaySeconds: 3600}'
  if ! { pod "$name-bare" "$name" "" && pod "$name-probed" "$name" "$probe" && pod "$name-other" other "" &&
    k create -f - >&2 <<<"{apiVersion: policy.k8s-go.openshift.org/v1alpha1, kind: HealthCheckPolicy, metadata: {name: $name, labels: {score: $name}}, spec: {podLabel: $name, selector: {matchLabels: {app: $name}}}}"; }; then
    result error "the pods or the policy cannot be created"
    return
  fi
  end=$((SECONDS + 10))
  until marked "$name-bare" || ((SECONDS >= end)); do sleep 0.2; done
  sleep 1 # whoever marks all pods has marked the others by then
  if ! marked "$name-bare"; then
    result fail "a pod without probes was not marked within 10 s"
  elif marked "$name-probed"; then
    result fail "a pod with probes was marked"
  elif marked "$name-other"; then
    result fail "a pod that the selector does not select was marked"
  else
    result pass
  fi
}

score
