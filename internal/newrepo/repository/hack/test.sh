#!/usr/bin/env bash
# Runs all tests. The controller is tested on the cluster of KUBECONFIG, as a process of
# this machine. Without KUBECONFIG it is tested as a pod, in a kind cluster that is
# made for the tests and removed. KINDFLAGS are further flags for its creation.
set -euo pipefail
cd "$(dirname "$0")/.."

go vet ./...
go -C hack vet ./...
go -C hack test ./...
if [[ -n ${KUBECONFIG:-} ]]; then
  E2E_CONTROLLER=process go test -count=1 ./...
  exit
fi

go -C hack build -o "$PWD/bin/" sigs.k8s.io/kind
name=e2e-$$
tmp=$(mktemp -d)
export KUBECONFIG=$tmp/kubeconfig
finish() {
  local status=$?
  if [[ $status != 0 ]]; then
    kubectl logs --namespace widget-controller --selector app.kubernetes.io/name=widget-controller --prefix --tail -1 || true
  fi
  bin/kind delete cluster --name "$name" || status=1
  rm -rf "$tmp"
  exit "$status"
}
trap finish EXIT
# shellcheck disable=SC2086 # several flags
bin/kind create cluster --name "$name" --wait 3m ${KINDFLAGS:-}
make --no-print-directory image
bin/kind load image-archive bin/image.tar --name "$name"
kubectl apply --server-side -k config/crd
kubectl apply --server-side -k config/controller
# What was just built, also if the kustomization names what was released.
kubectl set image --namespace widget-controller deployment/widget-controller widget-controller=widget-controller:dev
kubectl rollout status --namespace widget-controller deployment/widget-controller --timeout 3m
E2E_CONTROLLER=deployed go test -count=1 ./...
