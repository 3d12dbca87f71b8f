#!/usr/bin/env bash
# Renews what the page in the browser uses of others: the files that internal/web/vendored.json
# names, in the versions that it names. To move to another version, change the version there and
# empty its integrity, run this script, and read the difference. It needs npm and jq; a learner
# needs neither, because the files are checked in and make verify compares their checksums.
set -euo pipefail
cd "$(dirname "$0")/../internal/web"

manifest=vendored.json
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

count=$(jq length "$manifest")
for ((p = 0; p < count; p++)); do
  IFS=$'\t' read -r name version want < <(jq -r ".[$p] | [.package, .version, .integrity] | @tsv" "$manifest")
  packed=$(npm pack --json --pack-destination "$tmp" "$name@$version" 2>"$tmp/log" || { cat "$tmp/log" >&2; exit 1; })
  # npm 11 answers with a list, later versions with an object.
  got=$(jq -r '[.[]][0].integrity' <<<"$packed")
  if [[ -n $want && $got != "$want" ]]; then
    echo "web-vendor.sh: $name $version has the integrity $got, and $manifest says $want: do not use it before you know why" >&2
    exit 1
  fi
  rm -rf "$tmp/package"
  tar -xzf "$tmp/$(jq -r '[.[]][0].filename' <<<"$packed")" -C "$tmp"
  files=$(jq ".[$p].files | length" "$manifest")
  jq --arg sum "$got" ".[$p].integrity = \$sum" "$manifest" >"$tmp/manifest"
  for ((f = 0; f < files; f++)); do
    IFS=$'\t' read -r from to < <(jq -r ".[$p].files[$f] | [.from, .to] | @tsv" "$manifest")
    mkdir -p "$(dirname "$to")"
    install -m 644 "$tmp/package/$from" "$to"
    sum=$(sha256sum "$to" | cut -d' ' -f1)
    jq --arg sum "$sum" ".[$p].files[$f].sha256 = \$sum" "$tmp/manifest" >"$tmp/next"
    mv "$tmp/next" "$tmp/manifest"
  done
  cat "$tmp/manifest" >"$manifest"
  echo "ok  $name $version"
done
