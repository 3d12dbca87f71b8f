#!/usr/bin/env bash
# Makes from the types in api what follows from them: deep copies and the CRD.
set -euo pipefail
cd "$(dirname "$0")/.."

# The generator is a tool of the module in hack: what it depends on does not reach
# the controller. A second build costs a second.
go -C hack build -o "$PWD/bin/" sigs.k8s.io/controller-tools/cmd/controller-gen
bin/controller-gen object crd paths=./api/... output:crd:dir=config/crd
