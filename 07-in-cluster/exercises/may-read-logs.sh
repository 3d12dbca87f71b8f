#!/usr/bin/env bash
# may-read-logs.sh ACCOUNT NAMESPACE: may this service account of that namespace read the
# logs of the namespace's pods? It prints yes or no.
set -euo pipefail

# A log is the subresource log of a pod, and reading it is a get.
may_read_logs() {
  kubectl auth can-i get pods --subresource log --as "system:serviceaccount:$2:$1" --namespace "$2"
}

may_read_logs "$1" "$2"
