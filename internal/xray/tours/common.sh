# shellcheck shell=bash
# common.sh: what the tours share. They run in a terminal of make web, whose proxy
# they steer over the socket of the X-ray, and they leave nothing behind.
set -euo pipefail

if [[ -z ${WORKSHOP_XRAY:-} ]]; then
  echo "a tour needs the X-ray: run make web, and start the tour in its page" >&2
  exit 1
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

TOUR=$(basename "$0" .sh)
NAMESPACE=${WORKSHOP_PREFIX:-}tour-$TOUR
BIN=$PWD/.workshop/tours
PIDS=()
CLEAN_UP= # a command, for what a tour makes besides its namespace

xray_curl() { curl --disable --noproxy '*' --silent --show-error --fail --unix-socket "$WORKSHOP_XRAY" "$@"; }
faults() { xray_curl --request POST "http://xray/$1"; }
asked() { xray_curl "http://xray/requests?$1"; }
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# until_true TEXT COMMAND...: waits for a minute at most.
until_true() {
  local tries
  for ((tries = 0; tries < 600; tries++)); do
    "${@:2}" && return
    sleep 0.1
  done
  echo "the tour has waited a minute in vain until $1" >&2
  return 1
}

# run NAME PROGRAM ARG...: builds a program, and starts it in the background. What
# it prints is in $BIN/NAME.out, too; its errors go to $LOG.
run() {
  go build -o "$BIN/$1" "./$2"
  : >"$BIN/$1.out"
  "$BIN/$1" -namespace "$NAMESPACE" "${@:3}" > >(tee "$BIN/$1.out") 2>"${LOG:-/dev/stderr}" &
  PIDS+=($!)
}

clean_up() {
  trap - EXIT INT TERM
  faults clear >/dev/null || true
  # One of them does not end after SIGTERM: that is among its bugs.
  [[ ${#PIDS[@]} -eq 0 ]] || kill -KILL "${PIDS[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  kubectl delete namespace "$NAMESPACE" --ignore-not-found --wait=false
  $CLEAN_UP
}
trap clean_up EXIT
trap 'exit 130' INT TERM

kubectl get namespace "$NAMESPACE" >/dev/null 2>&1 && kubectl delete namespace "$NAMESPACE"
kubectl create namespace "$NAMESPACE"
mkdir -p "$BIN"
