#!/usr/bin/env bash
# hot-loop.sh: a controller that writes without need, and repeats what fails at once.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

updates() { asked "user-agent=find-the-bugs*&verb=update&resource=deployments&namespace=$NAMESPACE" | grep -c "^$1" || true; }
established() { kubectl wait --for=condition=Established crd/icecreams.controller.nicoleh.io 2>/dev/null; } # it fails while there are no conditions
more() { [[ $(updates "$1") -ge $2 ]]; }

if ! kubectl get crd icecreams.controller.nicoleh.io >/dev/null 2>&1; then
  if [[ -n ${WORKSHOP_PREFIX:-} ]]; then # a cluster has one definition for everybody
    echo "hot-loop needs the definition of Icecreams, which nobody has installed in this shared cluster: run it in one of your own (make up CLUSTER=kwok)" >&2
    exit 1
  fi
  CLEAN_UP="kubectl delete crd icecreams.controller.nicoleh.io --ignore-not-found --wait=false"
  kubectl apply -f 05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml
  until_true 'the definition is Established' established
fi
say 'find-the-bugs looks at its Icecream every second. Nothing changes, and it sends an update each time.'
LOG=/dev/null run find-the-bugs 06-controller/find-the-bugs -resync 1s
until_true 'the kind Icecream is known' kubectl -n "$NAMESPACE" apply -f 06-controller/objects/vanilla.yaml
until_true 'it has sent five updates' more 200 5

say 'For three seconds, each of its updates is answered by 500, after 5 milliseconds.'
faults "inject?fault=slow&delay=5ms&times=-1&verb=update&resource=deployments&namespace=$NAMESPACE" >/dev/null
faults "inject?fault=answer&code=500&times=-1&verb=update&resource=deployments&namespace=$NAMESPACE" >/dev/null
sleep 3
faults clear
say "In these three seconds, it has sent $(updates 500) updates in vain."
sleep 3 # so that anybody can see the rate fall
