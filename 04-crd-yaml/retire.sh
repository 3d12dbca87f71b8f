#!/usr/bin/env bash
# Retires a version of a resource. Its objects stay the same, in all namespaces.
#
#   retire.sh healthcheckpolicies.policy.k8s-go.openshift.org v1alpha1 v1beta1
set -euo pipefail
[[ $# == 3 ]] || { echo "usage: retire.sh CRD OLD-VERSION NEW-VERSION" >&2; exit 2; }
crd=$1 old=$2 new=$3
resource=${crd%%.*}.$new.${crd#*.}

# switch_storage makes the new version the storage version. Exactly one version is,
# so both lines have to change in one request.
switch_storage() {
  kubectl get crd "$crd" --output json |
    jq --arg new "$new" '.spec.versions[] |= (.storage = (.name == $new))' |
    kubectl replace --filename -
}

# rewrite makes the server store every object again. An update that changes nothing
# does that, but only once the server has noticed the new storage version; then the
# resourceVersion is another one.
rewrite() {
  local all before left
  all=(kubectl get "$resource" --all-namespaces --output json)
  before=$("${all[@]}" | jq --compact-output '[.items[].metadata | .uid + .resourceVersion]')
  while left=$("${all[@]}" | jq --argjson before "$before" '.items |= map(select(.metadata | .uid + .resourceVersion | IN($before[])))') &&
    jq --exit-status '.items | length > 0' <<<"$left" >/dev/null; do
    kubectl replace --filename - <<<"$left" || true # whoever has been faster has stored it again, too
    sleep 0.2
  done
}

# remove_old tells the server that no object is stored in the old version, and
# removes that version.
remove_old() {
  kubectl patch crd "$crd" --subresource=status --type=merge --patch "{\"status\": {\"storedVersions\": [\"$new\"]}}"
  kubectl get crd "$crd" --output json |
    jq --arg old "$old" 'del(.spec.versions[] | select(.name == $old))' |
    kubectl replace --filename -
}

switch_storage
rewrite
remove_old
