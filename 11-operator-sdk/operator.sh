# shellcheck shell=bash
# operator.sh: source it after 03-informer/faults.sh, from the root of the clone. It builds the
# operator, and defines two commands, each of which ends the operator that runs and starts another:
#   flavoured IMAGE   with that image, and with its flavours saved, through the fault proxy
#   as_installed      as the pod of the operator that is installed would run: with the arguments
#                     of its Deployment, which is scaled to zero, and with the token of its account
# Its output is in $FAULTS/operator, and $operator is its process.

go -C 10-kubebuilder/icecream build -o "$FAULTS_BIN/icecream" ./cmd || return 1

# run_operator KUBECONFIG ARG...
run_operator() {
  if [[ -n ${operator:-} ]]; then
    kill "$operator" 2>/dev/null
    wait "$operator" 2>/dev/null
  fi
  KUBECONFIG=$1 in_background operator "$FAULTS_BIN/icecream" "${@:2}"
  operator=$!
  printed 'Starting workers' operator
}

flavoured() { run_operator "$FAULTY" -namespace "$FAULTS_NAMESPACE" -health-probe-bind-address 0 -save-flavours -image "$1"; }

as_installed() {
  local of=(--namespace "$FAULTS_NAMESPACE") name=icecream-controller-manager deployment watched token arg args=()
  kubectl "${of[@]}" scale deployment "$name" --replicas 0 >/dev/null || return 1
  # On kind its pod works until it has ended.
  kubectl "${of[@]}" wait --for delete pods --selector control-plane=controller-manager --timeout 60s >/dev/null || return 1
  deployment=$(kubectl "${of[@]}" get deployment "$name" -o json) || return 1
  watched=$(jq -r '.spec.template.metadata.annotations["olm.targetNamespaces"]' <<<"$deployment")
  while read -r arg; do
    # shellcheck disable=SC2016 # the text itself
    arg=${arg/'$(WATCH_NAMESPACE)'/"$watched"}
    args+=("${arg/:8081/0}")
  done < <(jq -r '.spec.template.spec.containers[0].args[]' <<<"$deployment")
  token=$(kubectl "${of[@]}" create token "$name") || return 1
  (umask 077 && kubectl config view --raw --minify >"$FAULTS/account")
  KUBECONFIG=$FAULTS/account kubectl config set-credentials account --token "$token" >/dev/null || return 1
  KUBECONFIG=$FAULTS/account kubectl config set-context --current --user account >/dev/null || return 1
  run_operator "$FAULTS/account" "${args[@]}"
}
