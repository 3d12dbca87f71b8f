#!/usr/bin/env bash
# Makes from the types in 05-crd-go/pkg/apis everything that follows from them:
# deep copies, registration, OpenAPI models, apply configurations, clients,
# listers, informers and CRDs; what step 09 needs of that for its own types, and the client of its
# store; and what kubebuilder makes in step 10's project. Works in any clone; needs Go, no GOPATH and no vendor.
#
# CODEGEN_BIN is where the generators are built (default: .workshop/codegen).
set -euo pipefail
unset CDPATH # with it cd may go elsewhere
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Whatever workspace the clone lies in, and whatever flags are set. The lessons build the same generators,
# and with other flags each would link them again for the other.
export GOWORK=off GOFLAGS='-buildvcs=false -ldflags=-s'
export GOGC=400 # a generator lives for two seconds, and collecting garbage takes a quarter of them

bin=${CODEGEN_BIN:-$PWD/.workshop/codegen}
header=$PWD/scripts/codegen/header.txt
step=github.com/k8s-go/workshop/05-crd-go
apis=("$step/pkg/apis/policy/v1alpha1" "$step/pkg/apis/icecream/v1alpha1")
out=05-crd-go/pkg/generated
pkg=$step/pkg/generated
outside=09-outside/pkg
base=github.com/k8s-go/workshop/$outside
api=$base/apis/outside/v1alpha1

# The generators are tools of a module of their own: what they depend on does
# not reach the root module. A second build costs a second.
[[ -x $bin/controller-gen ]] || echo "Building the code generators (once, about a minute)"
mkdir -p "$bin"
go -C scripts/codegen build -o "$bin/" tool

schema=$(mktemp)
finish() {
  local status=$?
  rm -f "$schema"
  [[ $status == 0 ]] || echo "error: code generation stopped; generated files may be missing until it succeeds" >&2
}
trap finish EXIT

# What is no longer made must not stay.
rm -rf "$out" 05-crd-go/config/crd $outside/generated 09-outside/config/crd 09-outside/client/zz_generated.client.go
find 05-crd-go/pkg/apis $outside/apis -name 'zz_generated.*' -delete

# In the packages of the types.
"$bin/deepcopy-gen" --go-header-file "$header" --output-file zz_generated.deepcopy.go "${apis[@]}" "$api"
"$bin/register-gen" --go-header-file "$header" --output-file zz_generated.register.go "${apis[@]}" "$api"

# The models are for the apply configurations only. controller-gen could make
# those alone, without models, but it makes one package of them for each group,
# and the fake clientset of two groups needs one for both.
# Types of Kubernetes that ours refer to are described too, and their code,
# which lies in the module cache, is left as it is.
library=(k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version)
"$bin/openapi-gen" --go-header-file "$header" --output-file zz_generated.openapi.go \
  --output-dir "$out/openapi" --output-pkg "$pkg/openapi" --report-filename /dev/null \
  "${library[@]/#/--readonly-pkg=}" "${apis[@]}" "${library[@]}"
go run scripts/models-schema/main.go >"$schema"
rm -r "$out/openapi"

"$bin/applyconfiguration-gen" --go-header-file "$header" --openapi-schema "$schema" \
  --output-dir "$out/applyconfiguration" --output-pkg "$pkg/applyconfiguration" "${apis[@]}"
"$bin/client-gen" --go-header-file "$header" --clientset-name versioned \
  --apply-configuration-package "$pkg/applyconfiguration" \
  --output-dir "$out/clientset" --output-pkg "$pkg/clientset" \
  --input-base "$step/pkg/apis" --input policy/v1alpha1 --input icecream/v1alpha1
"$bin/lister-gen" --go-header-file "$header" \
  --output-dir "$out/listers" --output-pkg "$pkg/listers" "${apis[@]}"
"$bin/informer-gen" --go-header-file "$header" \
  --versioned-clientset-package "$pkg/clientset/versioned" --listers-package "$pkg/listers" \
  --output-dir "$out/informers" --output-pkg "$pkg/informers" "${apis[@]}"

"$bin/controller-gen" crd paths=./05-crd-go/pkg/apis/... output:crd:dir=05-crd-go/config/crd

# Step 09: no apply configurations, but a client of what is not Kubernetes.
"$bin/client-gen" --go-header-file "$header" --clientset-name versioned \
  --output-dir $outside/generated/clientset --output-pkg "$base/generated/clientset" \
  --input-base "$base/apis" --input outside/v1alpha1
"$bin/lister-gen" --go-header-file "$header" \
  --output-dir $outside/generated/listers --output-pkg "$base/generated/listers" "$api"
"$bin/informer-gen" --go-header-file "$header" \
  --versioned-clientset-package "$base/generated/clientset/versioned" --listers-package "$base/generated/listers" \
  --output-dir $outside/generated/informers --output-pkg "$base/generated/informers" "$api"
"$bin/controller-gen" crd "paths=./$outside/apis/..." output:crd:dir=09-outside/config/crd
"$bin/oapi-codegen" -config 09-outside/client/config.yaml 09-outside/cold-store/openapi.yaml

# Step 10 is a module of its own, as kubebuilder makes it. There, controller-gen does everything.
cd 10-kubebuilder/icecream
find api -name 'zz_generated.*' -delete
rm -rf config/crd/bases config/rbac/role.yaml config/webhook/manifests.yaml
"$bin/controller-gen" object paths=./...
"$bin/controller-gen" rbac:roleName=manager-role crd webhook paths=./... output:crd:artifacts:config=config/crd/bases
