#!/usr/bin/env bash
# edge-vs-level.sh: two programs keep three pods each, and both lose a DELETED event.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

pods() { kubectl -n "$NAMESPACE" get pods -l keeper="$1" --no-headers 2>/dev/null | wc -l; }
has() { [[ $(pods "$1") -eq $2 ]]; }
# A pod is deleted at once only when a node runs it.
all_ready() { kubectl -n "$NAMESPACE" wait --for=condition=Ready pods --all --timeout 1s >/dev/null 2>&1; }
lost() { [[ $(asked 'user-agent=keeper-*&verb=watch*' | grep -c 'fault drop') -eq 2 ]]; }

say 'Two programs start, and each creates three pods.'
run edge 06-controller/edge-vs-level -style edge
run level 06-controller/edge-vs-level -style level
until_true 'edge has three pods' has edge 3
until_true 'level has three pods' has level 3
until_true 'all pods are ready' all_ready

say 'The proxy will drop the next DELETED event of each. One pod of each is deleted.'
for style in edge level; do
  faults "inject?fault=drop&event=DELETED&verb=watch*&resource=pods&user-agent=keeper-$style" >/dev/null
  kubectl -n "$NAMESPACE" delete "$(kubectl -n "$NAMESPACE" get pods -l keeper=$style -o name | head -n 1)"
done
until_true 'both events are lost' lost
until_true 'level has three pods again' has level 3
sleep 5 # so that anybody can see that edge does nothing
say "After five seconds more, level has $(pods level | tr -d ' ') pods, and edge has $(pods edge | tr -d ' ')."
