# shellcheck shell=bash
# languages.sh: source it after 03-informer/faults.sh 12-any-language, from the root of the
# clone, in bash or zsh. It defines
#   run FILE           run a controller of this step in the background, through the proxy; what it
#                      prints is in $FAULTS/FILE
#   run_mended FILE    the same with its patch in mends
#   hook PROGRAM...    the same for a decision: build 12-any-language/hook, and give it a program to ask
#   finish             ask the last one to end, and say how it ended
#   owned NAME         wait until the Icecream NAME is available
#   counted [QUERY]    how many requests the proxy has seen; it counts from begin_count

PYTHON=$(12-any-language/runtimes.sh python) && NODE=$(12-any-language/runtimes.sh node) || return 1
mkdir "$FAULTS/mended" && 12-any-language/mended.sh "$FAULTS/mended" || return 1

run_in() {
  local dir=$1 file=$2 program
  case $file in
  *.sh) program=bash ;;
  *.py) program=$PYTHON ;;
  *.mjs) program=$NODE ;;
  *)
    echo "run: $file: want icecream.sh, icecream.py or icecream.mjs" >&2
    return 1
    ;;
  esac
  KUBECONFIG=$FAULTY in_background "$file" "$program" "$dir/12-any-language/$file" --namespace "$FAULTS_NAMESPACE"
  LAST=$!
}

run() { run_in . "$1"; }
run_mended() { run_in "$FAULTS/mended" "$1"; }

hook() {
  start hook -parent icecreams.v1alpha1.controller.nicoleh.io -child deployments.v1.apps -- "$@" || return 1
  LAST=$!
}

finish() {
  kill -TERM "$LAST"
  wait "$LAST"
  echo "exit code $?"
}

owned() { kubectl --namespace "$FAULTS_NAMESPACE" wait --for=condition=Available --timeout=2m "icecream/$1"; }

begin_count() { COUNTED=$(asked "${1:-}" | wc -l); }
counted() { echo $(($(asked "${1:-}" | wc -l) - COUNTED)); }
