# shellcheck shell=bash
# without.sh: source it after 03-informer/faults.sh, from the root of the clone. It defines
#   without CURE ARG...   build the controller without one of its cures, and run it like start;
#                         the cures are those of 10-kubebuilder/defaults
#   patched PATCH         apply a patch of this step to a copy of the project, which is $project then

patched() {
  local root
  root=$FAULTS_BIN/patched/$(basename "$1" .patch) # the same place each time, so that what has not changed is not compiled again
  project=$root/10-kubebuilder/icecream # as in a clone, because its Makefile builds controller-gen from ../../scripts
  rm -rf "$root"
  mkdir -p "${project%/*}" && ln -s "$PWD/scripts" "$root/" && cp -R 10-kubebuilder/icecream "$project" || return 1
  # Without the ceiling, git would look for a repository around the copy.
  GIT_CEILING_DIRECTORIES=$FAULTS_BIN/patched git -C "$root" apply "$PWD/10-kubebuilder/$1"
}

without() {
  patched "defaults/$1.patch" || return 1
  go -C "$project" build -o "$FAULTS_BIN/without/$1/icecream" ./cmd || return 1
  KUBECONFIG=$FAULTY in_background icecream "$FAULTS_BIN/without/$1/icecream" -namespace "$FAULTS_NAMESPACE" -health-probe-bind-address 0 "${@:2}"
}
