# shellcheck shell=bash
# waiting.sh: source it in bash or zsh. It defines what the lesson calls again and again:
#   k ARG...              kubectl in the lesson's namespace
#   eventually COMMAND... run a command until it succeeds, and print only what it printed then
#   refused COMMAND...    succeed if the command fails
#   served CRD...         wait until the API server serves these CRDs, and kubectl knows them
# The API server learns of a CRD, a policy or a role a moment after it has stored it.

k() { kubectl --namespace=workshop-04 "$@"; }

eventually() {
  local output end=$((SECONDS + 60))
  until output=$("$@" 2>&1); do
    if ((SECONDS > end)); then
      echo "eventually: not after a minute: $*" >&2
      echo "$output" >&2
      return 1
    fi
    sleep 0.2
  done
  if [[ -n $output ]]; then echo "$output"; fi
}

refused() { ! "$@"; }

served() {
  local crd
  eventually kubectl wait --for=condition=Established crd "$@" >/dev/null || return
  for crd in "$@"; do
    eventually k get "$crd" >/dev/null || return
    eventually kubectl explain "$crd" >/dev/null || return
  done
}
