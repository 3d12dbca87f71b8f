# shellcheck shell=bash
# store.sh: source it after 03-informer/faults.sh 09-outside, from the root of the clone, in bash
# or zsh. It builds the programs of this step, opens the cold store, and defines:
#   $STORE                       its address
#   reopen [FLAG...]             open it again after it was killed; it knows what its ledger says
#   tenant METHOD PATH [CURL...]  a call as a tenant: prints the answer, on one line
#   owner METHOD PATH [BODY]     a call as its owner, which prints nothing
#   rooms                        the rooms that are rented
#   calls                        what tenants have done so far to change something, a line each
#   controller PROGRAM [ARG...]  start naive or coldroom
#   crash, finish                end it with a SIGKILL, or well
#   struck                       wait until the first fault has struck

go build -o "$FAULTS_BIN/" ./09-outside/... || return 1

reopen() {
  local tries
  in_background store "$FAULTS_BIN/cold-store" -ledger "$FAULTS/ledger" -listen "${STORE_AT:-127.0.0.1:$(free_port 127.0.0.1)}" "$@"
  for ((tries = 0; tries < 600; tries++)); do # a minute
    STORE=$(sed -n 's/^cold-store: \(.*\), with.*/\1/p' "$FAULTS/store")
    if [[ -n $STORE ]]; then
      STORE_AT=${STORE#http://} # the same after a restart
      return
    fi
    sleep 0.1
  done
  cat "$FAULTS/store"
  return 1
}

# The proxies and options of your own curl are not for this store.
tenant() { curl --disable --noproxy '*' --silent --show-error --request "$1" "$STORE$2" "${@:3}"; }
owner() { curl --disable --noproxy '*' --silent --show-error --fail --output /dev/null --request "$1" "$STORE/owner$2" --data "${3:-}"; }
ledger() { curl --disable --noproxy '*' --silent --show-error --fail "$STORE/owner/ledger"; }

rooms() {
  ledger | jq -r -s '[.[].effect.room | select(.)] | group_by(.id) | map(.[-1]) | .[] | select(.state != "Emptying")
    | "\(.id) \(.name) pallets=\(.pallets) celsius=\(.celsius)"'
}

calls() {
  ledger | jq -r 'select(.by == "tenant" and .method != "GET") | [.method, .path, .code, .effect.kind, .effect.room.id, .fault] | map(select(.) | tostring) | join(" ")'
}

controller() {
  start "$1" -store "$STORE" "${@:2}" || return 1
  LAST=$!
}

crash() {
  kill -KILL "$LAST"
  wait "$LAST" 2>/dev/null
  owner DELETE /faults
}

finish() {
  kill -TERM "$LAST"
  wait "$LAST"
  echo "exit code $?"
}

struck() {
  until curl --disable --noproxy '*' --silent --fail "$STORE/owner/faults" | jq -e '.[0].struck > 0' >/dev/null; do sleep 0.1; done
}

unset STORE_AT
reopen -quota 20
