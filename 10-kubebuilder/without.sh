# shellcheck shell=bash
# without.sh: source it after 03-informer/faults.sh, from the root of the clone. It defines
#   without CURE ARG...   build the controller without one of its cures, and run it like start;
#                         the cures are those of 10-kubebuilder/defaults

without() {
  local cure=$1 project=$FAULTS/without-$1
  rm -rf "$project"
  cp -R 10-kubebuilder/icecream "$project" || return 1
  # Without the ceiling, git would look for a repository around the copy.
  GIT_CEILING_DIRECTORIES=$FAULTS git -C "$project" apply -p3 "$PWD/10-kubebuilder/defaults/$cure.patch" || return 1
  go -C "$project" build -o "$FAULTS_BIN/without/icecream" ./cmd || return 1
  KUBECONFIG=$FAULTY "$FAULTS_BIN/without/icecream" -namespace "$FAULTS_NAMESPACE" -health-probe-bind-address 0 "${@:2}" >"$FAULTS/icecream" 2>&1 &
  FAULTS_PIDS+=($!)
}
