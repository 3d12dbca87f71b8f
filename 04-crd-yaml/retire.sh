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

# rewrite makes the server store every object again. Where an update changes nothing, the server writes
# only if the object is stored in another version than the storage version. Then it has another
# resourceVersion, by our own doing, because we send the one that we have read. That shows once that
# the server has noticed the switch; from then on, what it does not store again is stored in the new
# version already. (Of several API servers, each notices by itself.)
rewrite() {
  local all namespace name try before after noticed=
  all=$(kubectl get "$resource" --all-namespaces --output json)
  while read -r namespace name; do
    for ((try = 0; try < 30; try++)); do
      before=$(kubectl get "$resource" "$name" --namespace "$namespace" --ignore-not-found --output json)
      [[ -n $before ]] || continue 2 # deleted meanwhile
      if after=$(kubectl replace --filename - --output json <<<"$before"); then # or somebody was faster
        [[ $(jq .metadata.resourceVersion <<<"$before$after" | uniq | wc -l) -eq 1 ]] || noticed=yes
        [[ -z $noticed ]] || continue 2
      fi
      sleep 0.2
    done
    [[ -n $after ]] || { echo "error: $name in $namespace could not be stored again" >&2; return 1; }
    noticed=yes # a server needs no six seconds: an earlier run has stored it again
  done < <(jq --raw-output '.items[].metadata | "\(.namespace) \(.name)"' <<<"$all")
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
