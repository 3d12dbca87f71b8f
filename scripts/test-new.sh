#!/usr/bin/env bash
# test-new.sh: a clone makes a repository with make new and is moved away. Then the
# repository generates and tests on its own, with a kind cluster that it makes itself.
# It clones what is committed. Without Docker it is skipped with exit code 77.
set -euo pipefail
unset CDPATH KUBECONFIG
cd "$(dirname "$0")/.."

skip() {
  echo "new repository: skipped: $*"
  exit 77
}
docker info >/dev/null 2>&1 || skip "no Docker engine answers"
kubectl=$(command -v kubectl || echo "$PWD/.workshop/bin/kubectl")
[[ -x $kubectl ]] || skip "kubectl is neither on PATH nor built (make up CLUSTER=kwok builds it)"

base=$(mktemp -d)
# shellcheck disable=SC2317,SC2329 # called by trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  rm -rf "$base" || status=1
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

git clone --quiet --no-hardlinks . "$base/clone"
mkdir "$base/bin"
ln -s "$kubectl" "$base/bin/kubectl"
make --no-print-directory -C "$base/clone" new GROUP=stable.example.org KIND=Widget DIR="$base/widgets"
mv "$base/clone" "$base/moved"

# kind's own node image, unless one was built here, whose network is another one.
image=workshop/node:$(sed -n 's,^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\).*,\1,p' scripts/controlplane/go.mod)
if docker image inspect "$image" >/dev/null 2>&1; then
  cat >"$base/kind.yaml" <<'END'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {disableDefaultCNI: true}
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
END
  export KINDFLAGS="--image $image --config $base/kind.yaml"
fi
PATH=$base/bin:$PATH make --no-print-directory -C "$base/widgets" generate test
