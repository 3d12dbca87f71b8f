#!/usr/bin/env bash
# ci.sh: what a change has to pass, for every machine that checks one.
#
#   scripts/ci.sh             all phases, in this order
#   scripts/ci.sh lint kind   some of them
#
# It stops at the first phase that fails, removes the clusters of this clone, and prints
# how long each phase took. A phase that ends with 77 has said why it cannot run here.
#
# CI_MINUTES is for one machine that has to do it all: it runs doctor to kind, new-machine
# next, and then begins with another phase at each commit. What would not end in that time
# is not begun, and the table says so. What kind-rest runs are the tests of some steps then,
# which are others at each commit.
set -euo pipefail
unset CDPATH # with it cd may go elsewhere
cd "$(dirname "$0")/.."

# A busy machine may strike a test. What fails twice is red, and what fails once is named.
export RERUN=1

all=(doctor lint verify kwok engine node-image kind new-machine kind-rest judge browser race chaos odd-machine offline-machine new-repository new-machine-rest)
optional=$((${#all[@]} - 8)) # so many of them, the last ones, may be left out

# usual PHASE: its seconds on two quiet cores, if it may be left out
usual() {
  case $1 in
  new-machine) echo 720 ;;
  kind-rest) echo 500 ;;
  judge) echo 600 ;;
  browser) echo 210 ;;
  race) echo 300 ;;
  chaos) echo 230 ;;
  odd-machine) echo 280 ;;
  offline-machine) echo 220 ;;
  new-repository) echo 120 ;;
  new-machine-rest) echo 600 ;;
  esac
}

# What real containers can change: the lessons, and the tests that kwok leaves out.
containers='^Test(README|InCluster|RolloutOfContainers|PodStreams|ContainersSeeAWrongCommand|NewAsPods|OwnProgramAsPod)$'

# On real containers these show what they have shown on kwok: they change our own
# programs, or try a reader's.
shown='^Test(Exercises|BadInput|ProgramsReportErrors|ScriptsRunTwice|Mends|FindTheBugs|Guards|IcecreamGuards|Defaults|Suite)$'

run() {
  case $1 in
  doctor) make doctor ;;
  lint) make lint ;;
  verify) make verify ;;
  unit) make test-unit ;;
  new-machine) scripts/new-machine.sh ;;
  new-machine-rest) rest_on_new_machine ;;
  kwok) make test CLUSTER=kwok ;;
  browser) make test-browser CLUSTER=kwok ;;
  race) make test-race CLUSTER=kwok ;;
  chaos) make chaos ;;
  judge) scripts/test-judge.sh ;;
  odd-machine) scripts/odd-machine.sh ;;
  offline-machine) scripts/offline-machine.sh ;;
  engine) scripts/docker/engine.sh start && remove_leftovers ;;
  node-image) make node-image ;;
  kind) on_kind ;;
  kind-rest) rest_on_kind ;;
  new-repository) scripts/test-new.sh ;;
  *)
    echo "error: there is no phase $1; the phases are ${all[*]} and unit" >&2
    return 2
    ;;
  esac
}

# On kind the lessons go through the fault proxy, as in a terminal of make web. A machine that
# is slow, or had to build all, and has to be ready in time, runs those of some steps.
on_kind() {
  make up CLUSTER=kind || return # the caller's || turns set -e off
  if [[ -z ${CI_MINUTES:-} ]] || ((SECONDS < CI_MINUTES * 60 * 2 / 3)); then
    READMES=proxy ONLY=$containers make test-e2e CLUSTER=kind
    return
  fi
  echo "After ${SECONDS}s there is no time for the lessons of all steps on kind"
  READMES=proxy ONLY=$containers test_on_kind "$(in_turn 1 '1 2 7' '3 7 8' '4 5 6 7' '7 9 10' '7 11 12')"
}

rest_on_kind() {
  scripts/test-kind.sh || return
  if [[ -z ${CI_MINUTES:-} ]]; then
    SKIP=$containers make test-e2e CLUSTER=kind
    return
  fi
  SKIP="$containers|$shown" test_on_kind "$(in_turn "$optional" '2' '6' '3 7 8' '1 4 5 9 10 11 12')"
}

# test_on_kind STEPS: the tests of some steps, whose numbers have spaces between them
test_on_kind() {
  local n
  for n in $1; do
    make test-step N="$n" CLUSTER=kind || return
  done
}

# Steps with a Go module of their own compile what make tour does not.
rest_on_new_machine() {
  local steps='10 11' n
  if [[ -n ${CI_MINUTES:-} ]]; then steps=$(in_turn "$optional" 10 11); fi
  for n in $steps; do
    scripts/new-machine.sh make test-step N="$n" || return # the caller's || turns set -e off
  done
}

# in_turn COMMITS CHOICE...: prints the choice whose turn it is. It stays the same for so many
# commits: of the phases that may be left out, each comes first once in as many as there are.
in_turn() {
  local commits=$1 turn
  shift
  turn=$(($(git rev-list --count HEAD) / commits % $#))
  printf '%s\n' "${@:turn+1:1}"
}

# A run that was killed may have left a cluster of a clone that is gone. On a CI
# machine nobody else has clusters with such names.
remove_leftovers() {
  local left
  left=$(docker ps --all --quiet --filter label=io.x-k8s.kind.cluster --filter name='^workshop-')
  if [[ ${CI:-} == true && -n $left ]]; then
    xargs docker rm --force --volumes <<<"$left"
  fi
}

table=() phase=
# shellcheck disable=SC2317,SC2329 # called by trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  if ((status && status != 130)) && [[ $phase == kind* ]]; then make logs CLUSTER=kind || true; fi # what the workflow keeps; there may be no cluster
  make down || status=1
  if [[ " ${phases[*]} " == *" engine "* ]]; then scripts/docker/engine.sh stop || status=1; fi
  printf '\n%-18s %6s  %s\n' PHASE TIME RESULT
  if [[ ${#table[@]} -gt 0 ]]; then printf '%s\n' "${table[@]}"; fi
  printf '%-18s %5ds\n' total "$SECONDS"
  exit "$status"
}

phases=("$@")
if [[ $# -eq 0 ]]; then
  phases=("${all[@]}")
  if [[ -n ${CI_MINUTES:-} ]]; then
    turn=$(($(git rev-list --count HEAD) % optional))
    phases=("${all[@]:0:8}" "${all[@]:8+turn}" "${all[@]:8:turn}")
  fi
fi
trap finish EXIT
trap 'exit 130' INT TERM
for phase in "${phases[@]}"; do
  printf '\n=== %s (%s free)\n' "$phase" "$(df --human-readable --output=avail . | tail -n 1 | tr -d ' ')"
  needs=$(usual "$phase")
  # Half as much again, because other machines are slower.
  if [[ -n ${CI_MINUTES:-} && -n $needs ]] && ((SECONDS + needs * 3 / 2 > CI_MINUTES * 60)); then
    table+=("$(printf '%-18s %6s  %s' "$phase" - "not begun: after ${SECONDS}s it would not end within $CI_MINUTES minutes")")
    continue
  fi
  start=$SECONDS result=ok status=0
  run "$phase" || status=$?
  case $status in
  0) ;;
  77) result=skipped ;;
  *) result=FAILED ;;
  esac
  table+=("$(printf '%-18s %5ds  %s' "$phase" $((SECONDS - start)) "$result")")
  [[ $result != FAILED ]]
done
