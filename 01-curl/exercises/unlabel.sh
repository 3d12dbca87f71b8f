#!/usr/bin/env bash
# unlabel.sh NAME: one merge patch changes two labels of a ConfigMap.
set -euo pipefail
# shellcheck source=../connect.sh
source "$(dirname "$0")/connect.sh"

# Print the body of the patch: the label owner becomes "me", the label draft goes, and
# everything else stays as it is.
body() {
  echo '{"metadata": {"labels": {"owner": "me", "draft": null}}}'
}

body >"$PKI/body"
api "/api/v1/namespaces/$NAMESPACE/configmaps/$1" --fail-with-body --request PATCH \
  --header "Content-Type: application/merge-patch+json" --data-binary "@$PKI/body" | jq -c .metadata.labels
