#!/usr/bin/env bash
# tombstone.sh: an informer misses a deletion, and its handler does not expect a tombstone.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

watches() { [[ $(asked "user-agent=tombstones*&verb=watch*&namespace=$NAMESPACE" | grep -c "$1") -ge 1 ]]; }
ended() { ! kill -0 "${PIDS[0]}" 2>/dev/null; }

say 'An informer fills its cache.'
run tombstones 03-informer/tombstones -careless
until_true 'the cache is filled' grep -q watching "$BIN/tombstones.out"
# An informer takes a watch that ends in its first second without an event for a broken one.
kubectl -n "$NAMESPACE" create configmap tomb
until_true 'the informer has the ConfigMap' grep -q 'tomb added' "$BIN/tombstones.out"

say 'The watch is cut. The next attempt is told by 410 that its history is gone, and the list after that stalls.'
faults "inject?fault=error-event&code=410&verb=watch&namespace=$NAMESPACE" >/dev/null
faults "inject?fault=stall&verb=watch-list&times=-1&namespace=$NAMESPACE" >/dev/null
faults "cut?verb=watch*&namespace=$NAMESPACE"
until_true 'the informer is told 410' watches error-event
until_true 'the list stalls' watches stall

say 'The ConfigMap is deleted while the informer is blind.'
kubectl -n "$NAMESPACE" delete configmap tomb
sleep 2 # so that anybody can see that no event arrives

say 'The list arrives without the ConfigMap.'
faults clear
until_true 'the program has ended' ended
say 'The handler has got a tombstone in place of a ConfigMap, and the program panicked.'
