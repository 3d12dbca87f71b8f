#!/usr/bin/env bash
# annotate.sh KEY VALUE: annotate the namespace the way the API was built for:
# GET the object, change it, PUT it back whole.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

api "/api/v1/namespaces/$NAMESPACE" --fail-with-body |
  jq --arg key "$1" --arg value "$2" '.metadata.annotations[$key] = $value' |
  api "/api/v1/namespaces/$NAMESPACE" --fail-with-body --request PUT --json @- |
  jq '.metadata.annotations'
