#!/usr/bin/env bash
# Retires a version of a resource. Its objects stay the same, in all namespaces.
#
#   retire.sh healthcheckpolicies.policy.k8s-go.openshift.org v1alpha1 v1beta1
set -euo pipefail
[[ $# == 3 ]] || { echo "usage: retire.sh CRD OLD-VERSION NEW-VERSION" >&2; exit 2; }
crd=$1 old=$2 new=$3
resource=${crd%%.*}.$new.${crd#*.}

# forget is a filter: nobody has written any field in the old version. Once that is gone, each server-side
# apply to an object whose managedFields name it would fail. Whoever applies should do so in the new version
# before. [{}] stands for nobody: an empty list would mean "as they were".
# shellcheck disable=SC2016 # $old is jq's
forget='if .metadata.managedFields then .metadata.managedFields |=
  (map(select(.apiVersion | endswith("/" + $old) | not)) | if . == [] then [{}] else . end) else . end'

# settle stores the first object as it is, with each default that the CRD has got since it was stored
# last: after that, only another storage version makes the server write it. If somebody else has written
# or deleted it meanwhile, that is as good.
settle() {
  local first said
  first=$(kubectl get "$resource" --all-namespaces --output json | jq '.items[0] // empty')
  [[ -n $first ]] || return 0
  said=$(kubectl replace --filename - <<<"$first" 2>&1) || [[ $said == *'(Conflict)'* || $said == *'(NotFound)'* ]] || {
    echo "$said" >&2
    return 1
  }
}

# switch_storage makes the new version the storage version. Exactly one version is,
# so both lines have to change in one request.
switch_storage() {
  kubectl get crd "$crd" --output json |
    jq --arg new "$new" '.spec.versions[] |= (.storage = (.name == $new))' |
    kubectl replace --filename -
}

# rewrite makes the server store every object again. Where an update changes nothing, the server writes
# only if the object is stored in another version than the storage version, and so one write shows that
# it has noticed the switch. Until then it stores in the old version what others create, so all objects
# are listed after that. If no write shows it, there is nothing to write, or an earlier run has done it:
# a server needs no six seconds. (Of several API servers each notices by itself: there, wait longer.)
rewrite() {
  local all namespace name object before after try
  objects() { kubectl get "$resource" --all-namespaces --output json | jq --raw-output '.items[].metadata | "\(.namespace) \(.name)"'; }
  # replaces an object with itself; fails if somebody was faster
  again() {
    object=$(kubectl get "$resource" "$name" --namespace "$namespace" --ignore-not-found --output json "$@") || return
    before=$(jq .metadata.resourceVersion <<<"$object") after=$before
    [[ -n $object ]] || return 0 # deleted meanwhile
    after=$(jq --arg old "$old" "$forget" <<<"$object" | kubectl replace --filename - --output json | jq .metadata.resourceVersion)
  }
  for ((try = 0; try < 30; try++)); do
    if read -r namespace name < <(objects) && again && [[ $before != "$after" ]]; then break; fi
    sleep 0.2
  done
  all=$(objects)
  while read -r namespace name; do
    for ((try = 0; try < 30; try++)); do
      if again --show-managed-fields; then continue 2; fi
      sleep 0.2
    done
    echo "error: $name in $namespace could not be stored again" >&2
    return 1
  done < <(grep . <<<"$all")
}

# remove_old tells the server that no object is stored in the old version, and
# removes that version.
remove_old() {
  kubectl patch crd "$crd" --subresource=status --type=merge --patch "{\"status\": {\"storedVersions\": [\"$new\"]}}"
  kubectl get crd "$crd" --output json |
    jq --arg old "$old" 'del(.spec.versions[] | select(.name == $old))' |
    kubectl replace --filename -
}

settle
switch_storage
rewrite
remove_old
