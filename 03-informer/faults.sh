# shellcheck shell=bash
# faults.sh: source it from the root of the clone, in bash or zsh. It starts the fault
# proxy in front of the cluster and defines:
#   $FAULTY                 kubeconfig of the proxy
#   faults COMMAND          steer it, see internal/faultproxy/control.go
#   asked [QUERY]           the requests that it has seen
#   while_cut COMMAND...    cut all watches, and run the command before anybody watches again
#   while_gone N COMMAND... the same, and N clients are told by 410 that history is gone
#   start PROGRAM ARG...    run a program of this step in the background, through the proxy
#   printed TEXT PROGRAM... wait until each of them has printed it
# What a program prints is in $FAULTS/PROGRAM.

# at_exit COMMAND: run it when this shell ends, besides what is to run then already.
at_exit() {
  if [[ -n ${ZSH_VERSION:-} ]]; then
    # zsh runs an EXIT trap that a function sets when that function ends.
    AT_EXIT=$((${AT_EXIT:-0} + 1))
    eval "at_exit_$AT_EXIT() { $1; }"
    # shellcheck disable=SC2206 # zsh does not split it
    zshexit_functions=("at_exit_$AT_EXIT" ${zshexit_functions[@]})
  else
    local before
    eval "before=($(trap -p EXIT))" # trap -- 'COMMANDS' EXIT
    # shellcheck disable=SC2064 # the commands of now, not those of the end
    trap "$1${before[2]:+; ${before[2]}}" EXIT
  fi
}

FAULTS=$(mktemp -d)
FAULTY=$FAULTS/kubeconfig
go build -o "$FAULTS/serve" ./internal/faultproxy/serve
"$FAULTS/serve" -write-kubeconfig "$FAULTY" -control "$FAULTS/socket" >"$FAULTS/log" 2>&1 &
FAULTS_PID=$!
at_exit "kill $FAULTS_PID; rm -rf $(printf %q "$FAULTS")"
until [ -s "$FAULTY" ]; do
  kill -0 $FAULTS_PID || { cat "$FAULTS/log"; break; }
  sleep 0.1
done

faults() { curl --silent --show-error --unix-socket "$FAULTS/socket" --request POST "http://proxy/$1"; }
asked() { curl --silent --show-error --unix-socket "$FAULTS/socket" "http://proxy/requests?${1:-}"; }

while_cut() {
  faults 'inject?fault=stall&verb=watch*&times=-1' >/dev/null
  faults cut
  "$@"
  faults clear >/dev/null
}

while_gone() {
  local clients=$1 before
  shift
  before=$(asked verb=watch | grep -c error-event)
  faults "inject?fault=error-event&code=410&verb=watch&times=$clients" >/dev/null
  faults 'inject?fault=stall&verb=watch-list&times=-1' >/dev/null
  faults cut
  until [ "$(asked verb=watch | grep -c error-event)" -ge $((before + clients)) ]; do sleep 0.1; done
  "$@"
  faults clear >/dev/null
}

start() {
  : >"$FAULTS/$1"
  go run "./03-informer/$1" -kubeconfig "$FAULTY" -namespace workshop-03 "${@:2}" >"$FAULTS/$1" 2>&1 &
}

printed() {
  local program tries
  for program in "${@:2}"; do
    for ((tries = 0; tries < 600; tries++)); do # a minute
      grep --quiet "$1" "$FAULTS/$program" && continue 2
      sleep 0.1
    done
    cat "$FAULTS/$program"
    return 1
  done
}
