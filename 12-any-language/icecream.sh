#!/usr/bin/env bash
# icecream.sh: gives each Icecream a Deployment, and says in its status how that goes.
#
#   icecream.sh --namespace NAMESPACE        it reaches the cluster through KUBECONFIG
set -uo pipefail
[[ ${1:-} == --namespace && $# -eq 2 ]] || {
  echo "usage: icecream.sh --namespace NAMESPACE" >&2
  exit 2
}
# shellcheck source=../01-curl/connect.sh
source "${BASH_SOURCE[0]%/*}/../01-curl/connect.sh" || exit 1 # for api
icecreams=/apis/controller.nicoleh.io/v1alpha1/namespaces/$2/icecreams
deployments=/apis/apps/v1/namespaces/$2/deployments

# follow COLLECTION: a line for each event, for ever. Without a resourceVersion, a watch
# begins with an event for each object.
follow() {
  while :; do
    echo began
    api "$1?watch=true" --no-buffer | jq --unbuffered --raw-output .type
    sleep 1
  done
}

# What has to be written, as three lines for each request: its method, path and body.
# shellcheck disable=SC2016 # jq's own variables
decision='
def labels: {"controller.nicoleh.io/uid": .metadata.uid};

def deployment: {
  metadata: {
    name: .spec.deploymentName,
    ownerReferences: [{apiVersion, kind, name: .metadata.name, uid: .metadata.uid, controller: true, blockOwnerDeletion: true}]
  },
  spec: {
    replicas: .spec.replicas,
    selector: {matchLabels: labels},
    template: {metadata: {labels: labels}, spec: {containers: [{name: "icecream", image: "workshop/pause:1"}]}}
  }
};

# The request that writes the status, if it differs.
def report($numbers; $reason; $message):
  ([.status.conditions[]? | select(.type == "Available")][0] // {}) as $old
  | (if $reason == "Available" then "True" else "False" end) as $status
  # A refusal keeps its first words: with others each time, each report would bring an event, and that the next try.
  | (if $reason == "Refused" and $old.reason == $reason and $old.observedGeneration == .metadata.generation then $old.message else $message end) as $message
  | ($numbers + {
      observedGeneration: .metadata.generation,
      conditions: ([.status.conditions[]? | select(.type != "Available")] + [{
        type: "Available", $status, $reason, $message, observedGeneration: .metadata.generation,
        lastTransitionTime: (if $old.status == $status then $old.lastTransitionTime else now | floor | todate end)
      }])
    }) as $after
  | select(.status != $after)
  | "PUT", "\($icecreams)/\(.metadata.name)/status", (.status = $after | tojson);

def decide($d):
  if $refused then report({}; "Refused"; $refused)
  elif $d == null then "POST", $deployments, (deployment | tojson)
  elif (.metadata.uid as $uid | any($d.metadata.ownerReferences[]?; .controller and .uid == $uid) | not) then
    report({}; "ErrResourceExists"; "the Deployment belongs to somebody else")
  elif $d.metadata.deletionTimestamp == null and $d.spec.replicas != .spec.replicas then
    "PUT", "\($deployments)/\($d.metadata.name)", (.spec.replicas as $wanted | $d | .spec.replicas = $wanted | tojson)
  else
    {replicas: ($d.status.replicas // 0), availableReplicas: ($d.status.availableReplicas // 0)} as $numbers
    | report($numbers; if $numbers.availableReplicas >= .spec.replicas then "Available" else "Progressing" end; "")
  end;

(input | .items) as $all
| (input | .items | map({key: .metadata.name, value: .}) | from_entries) as $by_name
| $all[]
| .apiVersion = "controller.nicoleh.io/v1alpha1" | .kind = "Icecream"
| select(.metadata.deletionTimestamp == null and ($name == "" or $name == .metadata.name))
| decide($by_name[.spec.deploymentName])'

# decide NAME REFUSED reads the two lists; REFUSED is what the API server has said of NAME, or null.
decide() {
  jq --null-input --raw-output --arg icecreams "$icecreams" --arg deployments "$deployments" \
    --arg name "$1" --argjson refused "$2" "$decision"
}

# send METHOD PATH BODY: prints what the API server says if it refuses; fails if it does not accept.
send() {
  local answer code
  answer=$(api "$2" --request "$1" --json @- --max-time 20 --write-out '\n%{http_code}' <<<"$3") || return 1
  code=${answer##*$'\n'}
  [[ $code == 2* ]] && return
  echo "$1 $2: $code" >&2
  [[ $code == 4* && $code != @(401|404|409|429) ]] && jq .message <<<"${answer%$'\n'*}"
  return 1
}

# reconcile brings all Icecreams to what they should be, and fails if one of them could not be brought.
reconcile() {
  local lists decided method path body said failed=0
  lists=$(api "$icecreams" --fail --max-time 20 && api "$deployments" --fail --max-time 20) || return 1
  decided=$(decide '' null <<<"$lists") || return 1
  while read -r method && read -r path && read -r body; do
    said=$(send "$method" "$path" "$body") && continue
    failed=1
    if [[ $path == "$deployments"* && -n $said ]]; then # this may stay so: the status has to say it
      decide "$(jq --raw-output '.metadata.ownerReferences[] | select(.controller).name' <<<"$body")" "$said" <<<"$lists" |
        { read -r method && read -r path && read -r body && send "$method" "$path" "$body"; } >/dev/null
    fi
  done <<<"$decided"
  return "$failed"
}

mkfifo "$PKI/events"
set -m # each job becomes a process group, so that it can be ended with what it has started
follow "$icecreams" >"$PKI/events" &
jobs=(-$!)
follow "$deployments" >"$PKI/events" &
jobs+=(-$!)
set +m
# shellcheck disable=SC2016 # it is for later
at_exit 'kill -- "${jobs[@]}"'
trap 'exit 0' TERM INT

# Look at everything after each event, or when it is time to try again.
delay=0
while :; do
  if [[ $delay -gt 0 ]]; then read -r -t "$delay" -u 3 _; else read -r -u 3 _; fi
  for ((n = 0; n < 20; n++)); do read -r -t 0.05 -u 3 _ || break; done # events that come together need one look
  if reconcile; then
    delay=0
  else
    delay=$((delay < 5 ? delay * 2 + 1 : 10))
  fi
done 3<>"$PKI/events"
