# shellcheck shell=bash
# faults.sh: source it from the root of the clone, in bash or zsh, for this step or
# with the folder of another one. It starts the fault proxy in front of the cluster
# and defines:
#   $FAULTY                 kubeconfig of the proxy
#   faults COMMAND          steer it, see internal/faultproxy/control.go
#   asked [QUERY]           the requests that it has seen
#   while_cut COMMAND...    cut all watches, and run the command before anybody watches again
#   while_gone N COMMAND... the same, and N clients are told by 410 that history is gone
#   start PROGRAM ARG...    run a program of the step in the background, through the proxy
#   printed PATTERN PROGRAM... wait until the output of each of them matches
# What a program prints is in $FAULTS/PROGRAM. Where one runs twice, NAME=PROGRAM
# gives it another name. Sourced again, it starts a new proxy.

if [[ ! -f 03-informer/faults.sh ]]; then
  echo "faults.sh: source it from the root of the clone" >&2
  return 1
fi

# at_exit COMMAND: what this shell was to run at its end already, it runs after COMMAND.
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

faults_end() {
  kill "${FAULTS_PIDS[@]}" 2>/dev/null
  local pid tries=0
  for pid in "${FAULTS_PIDS[@]}"; do # one that ignores the signal must not keep the shell
    while kill -0 "$pid" 2>/dev/null && ((tries++ < 30)); do sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null
  done
  [[ ${#FAULTS_PIDS[@]} -eq 0 ]] || wait "${FAULTS_PIDS[@]}" 2>/dev/null # without one, it would wait for your own
  rm -rf "$FAULTS"
}

if [[ -n ${FAULTS:-} ]]; then
  faults_end
else
  at_exit faults_end
fi
FAULTS_STEP=${1:-03-informer}
FAULTS_NAMESPACE=${WORKSHOP_PREFIX:-}workshop-${FAULTS_STEP%%-*}
FAULTS=$(mktemp -d "${TMPDIR:-/tmp}/tmp.XXXXXXXXXX") # without that, macOS takes another folder
FAULTY=$FAULTS/kubeconfig
FAULTS_PIDS=()
FAULTS_BIN=$PWD/.workshop/lesson-${FAULTS_STEP%%-*} # stays, so that what has not changed is not linked again
go build -o "$FAULTS_BIN/" ./internal/faultproxy/serve || return 1
# The path of a socket must be short, and a temporary folder's may be long: so work from there.
(cd "$FAULTS" && exec "$FAULTS_BIN/serve" -write-kubeconfig kubeconfig -control socket) >"$FAULTS/log" 2>&1 &
FAULTS_PIDS+=($!)
until [[ -s $FAULTY ]]; do
  if ! kill -0 $! 2>/dev/null; then
    cat "$FAULTS/log" >&2
    return 1
  fi
  sleep 0.1
done

# The proxies and options of your own curl are not for this socket.
faults_curl() (cd "$FAULTS" && curl --disable --noproxy '*' --silent --show-error --unix-socket socket "$@")
faults() { faults_curl --request POST "http://proxy/$1"; }
asked() { faults_curl "http://proxy/requests?${1:-}"; }

while_cut() {
  faults 'inject?fault=stall&verb=watch*&times=-1' >/dev/null
  faults cut
  "$@"
  # A list waits until the server's cache is up to date. The watches that follow do not.
  kubectl get configmaps --namespace "$FAULTS_NAMESPACE" >/dev/null
  faults clear >/dev/null
}

while_gone() {
  local clients=$1 before
  shift
  before=$(asked verb=watch | grep -c error-event)
  faults "inject?fault=error-event&code=410&verb=watch&times=$clients" >/dev/null
  faults 'inject?fault=stall&verb=watch-list&times=-1' >/dev/null
  faults cut
  until [[ $(asked verb=watch | grep -c error-event) -ge $((before + clients)) ]]; do sleep 0.1; done
  "$@"
  faults clear >/dev/null
}

# in_background NAME COMMAND...: run it, with what it prints in $FAULTS/NAME, and end it with
# this shell. The file is emptied at once, or printed could read what the last one has printed.
in_background() {
  : >"$FAULTS/$1"
  "${@:2}" >"$FAULTS/$1" 2>&1 &
  FAULTS_PIDS+=($!)
}

# free_port HOST: a port that nobody listens on, below those that systems hand out to whoever asks
# for any port: a server that is away for a moment finds it free again. zsh cannot look, and trusts
# its luck.
free_port() {
  local port
  while port=$((10000 + RANDOM % 22768)) && (: <>"/dev/tcp/$1/$port") 2>/dev/null; do :; done
  echo "$port"
}

start() {
  local name=${1%%=*} program=${1##*=}
  : >"$FAULTS/$name" # also if it cannot be built
  # Not go run, which leaves the program alone when it is killed itself.
  if [[ -f $FAULTS_STEP/$program/go.mod ]]; then # a project of its own
    go -C "$FAULTS_STEP/$program" build -o "$FAULTS_BIN/$program" ./cmd || { false & return 1; } # or $! would be another program
  else
    go build -o "$FAULTS_BIN/" "./$FAULTS_STEP/$program" || { false & return 1; }
  fi
  KUBECONFIG=$FAULTY in_background "$name" "$FAULTS_BIN/$program" -namespace "$FAULTS_NAMESPACE" "${@:2}"
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
