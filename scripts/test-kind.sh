#!/usr/bin/env bash
# test-kind.sh: what is in the kind cluster of this clone outlives a request that cannot be met,
# and a restart of its node, as that of the machine is. Ctrl-C leaves no half-made one.
set -euo pipefail
unset CDPATH # with it cd may go elsewhere
cd "$(dirname "$0")/.."
export CLUSTER=kind
unset K8S_VERSION

fail() {
  printf 'test-kind: %s\n' "$*" >&2
  exit 1
}

k() { KUBECONFIG=.workshop/kind/kubeconfig .workshop/bin/kubectl "$@"; }

make up
k delete configmap outlives --namespace default --ignore-not-found
k create configmap outlives --namespace default
uid=$(k get configmap outlives --namespace default --output 'jsonpath={.metadata.uid}')

if said=$(K8S_VERSION=1.1 make up 2>&1) || [[ $said != *'no node image is pinned for it'* ]]; then fail "a version that does not exist: $said"; fi

read -r engine name _ <.workshop/kind/made
nodes() { "$engine" ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$name"; }
"$engine" stop --time 1 "$name-control-plane" >/dev/null
said=$(make up)
echo "$said"
[[ $said == *'its objects are still there'* ]] || fail 'it was not repaired'
[[ $(k get configmap outlives --namespace default --output 'jsonpath={.metadata.uid}') == "$uid" ]] || fail 'its objects are gone'
k delete configmap outlives --namespace default

make down
set -m # a background command gets a process group of its own, and may be interrupted
make up &
until [[ -n $(nodes) ]]; do
  kill -0 $! 2>/dev/null || fail 'it has ended without a node'
  sleep 0.05
done
kill -INT -- "-$!"
if wait $!; then fail 'Ctrl-C was no failure'; fi
sleep 5 # the engine would go on
left=$(nodes)
[[ -z $left ]] || fail "Ctrl-C has left the container $left"
