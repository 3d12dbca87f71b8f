# shellcheck shell=bash
# webhooks.sh: source it after 03-informer/faults.sh, from the root of the clone. It builds the
# programs of this step, and defines:
#   $HERE           the address of this machine, as the API server reaches it
#   serve [ARG...]  end the webhook that runs, and start another one, at $ADDRESS
#   registered FILE print a file with $ADDRESS in it, as the API server has to know it
#   in_force        wait until the webhooks are asked, and answer
#   stop PROGRAM    end what start has started

go build -o "$FAULTS_BIN/" ./08-webhooks/... || return 1
HERE=$("$FAULTS_BIN/address") || return 1
ADDRESS=

serve() {
  local tries
  if [[ -n ${webhook:-} ]]; then
    kill "$webhook" 2>/dev/null
    wait "$webhook" 2>/dev/null
  fi
  in_background webhook "$FAULTS_BIN/webhook" -listen "${ADDRESS:-$HERE:$(free_port "$HERE")}" -cert-dir "$FAULTS/certificate" "$@"
  webhook=$!
  for ((tries = 0; tries < 600; tries++)); do # a minute
    ADDRESS=$(sed -n 's/.*"Listening" address="\([^"]*\)".*/\1/p' "$FAULTS/webhook")
    [[ -n $ADDRESS ]] && return
    sleep 0.1
  done
  cat "$FAULTS/webhook"
  return 1
}

registered() { sed "s/ADDRESS/$ADDRESS/" "08-webhooks/$1"; }

in_force() {
  local begun=$SECONDS touched='' said
  until ((SECONDS - begun > 120)); do
    # An API server that looked just when the caBundle came may keep the configuration without it, until the next change.
    [[ -z $touched ]] && ((SECONDS - begun > 30)) && touched=yes && kubectl annotate --overwrite mutatingwebhookconfigurations,validatingwebhookconfigurations "$FAULTS_NAMESPACE" again=yes &>/dev/null
    said=$(kubectl create --dry-run=server -o name -f - 2>&1 <<<"{apiVersion: controller.nicoleh.io/v1alpha1, kind: Icecream, metadata: {name: probe, namespace: $FAULTS_NAMESPACE}}") && return
    sleep 0.2
  done
  echo "in_force: after two minutes still: $said" >&2
  return 1
}

stop() {
  local pid
  for pid in "${FAULTS_PIDS[@]}"; do
    if [[ $(ps -ww -o args= -p "$pid") == "$FAULTS_BIN/$1 "* ]]; then
      kill "$pid" && wait "$pid"
      return
    fi
  done
  echo "stop: $1 does not run" >&2
  return 1
}
