#!/usr/bin/env bash
# rotate.sh FOLDER: replaces the CA of a webhook, and its certificate, while people write. The
# folder has ca.crt, tls.crt and tls.key, all new. The server listens at $ADDRESS, and mounts
# the Secret webhook-tls of the namespace $WORKSHOP_NAMESPACE. A ValidatingWebhookConfiguration
# and a MutatingWebhookConfiguration, both called $WORKSHOP_NAMESPACE, have one webhook each.
set -euo pipefail
new=$1
kinds=(mutatingwebhookconfiguration validatingwebhookconfiguration)

# trusted KIND: the caBundle of a configuration, as PEM.
trusted() {
  kubectl get "$1" "$WORKSHOP_NAMESPACE" -o jsonpath='{.webhooks[0].clientConfig.caBundle}' | base64 -d
}

# trust KIND FILE: write it.
trust() {
  kubectl patch "$1" "$WORKSHOP_NAMESPACE" --type json --patch "[{\"op\": \"replace\", \"path\": \"/webhooks/0/clientConfig/caBundle\", \"value\": \"$(base64 <"$2" | tr -d '\n')\"}]"
}

# shows_new: does the server show a certificate that the new CA has signed?
shows_new() {
  curl --noproxy '*' --silent --output /dev/null --cacert "$new/ca.crt" "https://$ADDRESS/"
}

rotate() {
  local kind both
  both=$(mktemp)
  # shellcheck disable=SC2064 # the name of now
  trap "rm -f '$both'" EXIT
  for kind in "${kinds[@]}"; do
    { trusted "$kind"; cat "$new/ca.crt"; } >"$both"
    trust "$kind" "$both"
  done
  sleep 2 # until the API server has heard of both
  kubectl create secret tls webhook-tls --namespace "$WORKSHOP_NAMESPACE" --cert "$new/tls.crt" --key "$new/tls.key" --dry-run=client -o yaml | kubectl apply -f -
  until shows_new; do sleep 0.2; done
  for kind in "${kinds[@]}"; do
    trust "$kind" "$new/ca.crt"
  done
}

rotate
