#!/usr/bin/env bash
# scaffold.sh DIR: writes into DIR what kubebuilder makes of nothing: a project, an API
# and its webhooks. It needs no network.
set -euo pipefail
unset CDPATH
[[ $# -eq 1 ]] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1"
[[ -z $(ls -A "$1") ]] || { echo "error: $1 is not empty" >&2; exit 1; }
dir=$(cd "$1" && pwd)
kubebuilder=$("$(dirname "$0")/../scripts/kubebuilder.sh")

# kubebuilder ends each of its commands with go mod tidy, which would download the versions
# that its scaffold pins: 3 GB that nobody uses here. The go that it finds leaves that out.
quiet=$(mktemp -d)
trap 'rm -rf "$quiet"' EXIT
# shellcheck disable=SC2016 # $* and $@ are the script's own
printf '#!/usr/bin/env bash\n[[ $* == "mod tidy" ]] || exec %q "$@"\n' "$(command -v go)" >"$quiet/go"
chmod +x "$quiet/go"
export PATH="$quiet:$PATH" GOPROXY=off GOWORK=off GOFLAGS=-mod=mod

cd "$dir"
# No license, because its header would name the year.
"$kubebuilder" init --project-name icecream --domain nicoleh.io --repo github.com/k8s-go/workshop/10-kubebuilder/icecream \
  --license none --fetch-deps=false --skip-go-version-check
of=(--group controller --version v1alpha1 --kind Icecream)
"$kubebuilder" create api "${of[@]}" --resource --controller --make=false
"$kubebuilder" create webhook "${of[@]}" --defaulting --programmatic-validation --make=false
