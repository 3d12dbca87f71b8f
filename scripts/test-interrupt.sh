#!/usr/bin/env bash
# Interrupts `make test` at random moments, as Ctrl-C does, and checks that
# nothing is left: no process, no namespace, no cluster-scoped object of a lesson,
# and no file in TMPDIR, in the clone or in .workshop.
#
#   scripts/test-interrupt.sh [ROUNDS [MOST_SECONDS]]     default: 10 rounds within 120 seconds each
#   TARGET=test-step N=3 scripts/test-interrupt.sh        something else than `make test`
#
# Uses the cluster that CLUSTER names, which must be up. Linux only: it finds
# processes by their environment in /proc.
set -euo pipefail
set -m # a background command gets a process group of its own, and may be interrupted
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-10} most=${2:-120} target=${TARGET:-test}
export CLUSTER=${CLUSTER:-kwok} WORKSHOP_INTERRUPT
kubeconfig=.workshop/$CLUSTER/kubeconfig

# cluster prints what the cluster holds that tests make.
cluster() {
  .workshop/bin/kubectl --kubeconfig "$kubeconfig" get namespaces,crd,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies \
    --output name | sort
}
# files prints the files of the clone that a run may not add to or take from.
files() {
  git status --porcelain --ignored
  find .workshop -path .workshop/programs -prune -o -path "$(dirname "$kubeconfig")" -prune -o -print | sort
  find .workshop/programs -mindepth 1 -maxdepth 1 ! -type d
}
# processes prints what was started by this round and still runs.
processes() {
  local environ pid
  for environ in /proc/[0-9]*/environ; do
    pid=${environ#/proc/} pid=${pid%/environ}
    if { tr '\0' '\n' <"$environ"; } 2>/dev/null | grep -qx "WORKSHOP_INTERRUPT=$WORKSHOP_INTERRUPT"; then
      if [[ $pid != "$$" && $(ps -o stat= -p "$pid" 2>/dev/null) == [^Z]* ]]; then ps -o pid=,args= -p "$pid" || true; fi
    fi
  done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
WORKSHOP_INTERRUPT=none
make up >/dev/null
mkdir -p .workshop/programs
failed=0
for ((round = 1; round <= rounds; round++)); do
  cluster >"$scratch/cluster.before"
  files >"$scratch/files.before"
  mkdir "$scratch/tmp"
  WORKSHOP_INTERRUPT=$$-$round
  TMPDIR=$scratch/tmp make "$target" >"$scratch/output" 2>&1 &
  leader=$!
  after=$((RANDOM % most)).$((RANDOM % 10))
  sleep "$after" & sleeper=$!
  wait -n "$leader" "$sleeper" || true
  early=
  if ! kill -0 "$leader" 2>/dev/null; then early=' (it had ended by itself)'; fi
  kill "$sleeper" 2>/dev/null || true
  # As from a terminal: to make and all that is in its group.
  start=$SECONDS
  kill -INT -- "-$leader" 2>/dev/null || true
  status=0
  wait "$leader" || status=$?
  took=$((SECONDS - start))

  left=
  running=$(processes)
  if [[ -n $running ]]; then left+=$'\nprocesses:\n'$running; fi
  cluster >"$scratch/cluster.after"
  files >"$scratch/files.after"
  left+=$(diff "$scratch/cluster.before" "$scratch/cluster.after" || true)
  left+=$(diff "$scratch/files.before" "$scratch/files.after" || true)
  left+=$(find "$scratch/tmp" -mindepth 1 -maxdepth 3)
  if [[ -z $early && $status == 0 ]]; then left+=$'\nexit status 0'; fi
  printf 'round %d: interrupted after %ss%s, exit status %d %ds later: %s\n' \
    "$round" "$after" "$early" "$status" "$took" "${left:-nothing is left}"
  if [[ -n $left ]]; then
    failed=1
    echo "--- the end of its output"
    tail -n 15 "$scratch/output"
  fi
  # One round must not fail the next.
  rm -rf "$scratch/tmp"
  while read -r pid _; do kill -KILL "$pid" 2>/dev/null || true; done <<<"$running"
done
exit "$failed"
