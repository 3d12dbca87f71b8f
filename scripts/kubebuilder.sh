#!/usr/bin/env bash
# kubebuilder.sh: builds kubebuilder unless it is there, and prints its path.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/.."
export GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0 # as the Makefile does
scripts/build.sh
exec .workshop/workshop kubebuilder
