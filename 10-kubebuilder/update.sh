#!/usr/bin/env bash
# update.sh: rewrites changes.patch, by which the project in icecream differs from what
# kubebuilder makes of nothing. What is deleted comes last.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
./scaffold.sh "$dir/a" >"$dir/said" 2>&1 || { cat "$dir/said" >&2; exit 1; }
cp -R icecream "$dir/b"
# What go mod tidy and controller-gen make, and what git ignores.
rm -rf "$dir"/[ab]/{go.sum,api/v1alpha1/zz_generated.deepcopy.go,config/crd/bases,config/rbac/role.yaml,config/webhook/manifests.yaml,bin,cover.out}
for filter in d D; do
  git -C "$dir" -c core.abbrev=12 diff --no-index --no-prefix --no-color --no-ext-diff --no-renames --diff-filter="$filter" a b || [[ $? == 1 ]]
done >changes.patch
