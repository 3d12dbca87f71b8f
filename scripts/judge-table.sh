#!/usr/bin/env bash
# judge-table.sh: judges each controller of 06-controller/contracts/controllers.tsv at all
# levels, or as far as its row says, with one seed, and writes 06-controller/contracts/VERDICTS.md from what it found.
#
#   scripts/judge-table.sh [NAME]     only the controllers whose name matches; prints the rows
set -euo pipefail
unset CDPATH CLUSTER KUBECONFIG
cd "$(dirname "$0")/.."

folder=06-controller/contracts
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
trap 'exit 130' INT TERM

go build -o "$base/judge" ./cmd/judge
python=$(12-any-language/runtimes.sh python) && 12-any-language/runtimes.sh node >/dev/null # it says what is missing
mkdir "$base/mended" "$base/bin"
ln -s "$python" "$base/bin/python3" # the table names no machine's paths
export PATH=$base/bin:$PATH
12-any-language/mended.sh "$base/mended"
{
  echo "| controller | contract | level reached | cases passed | what was found |"
  echo "|---|---|---|---|---|"
} >"$base/table"
while IFS=$'\t' read -r name contract command level; do
  [[ -n $name && $name != '#'* && $name =~ ${1:-.} ]] || continue
  echo "--- $name" >&2
  code=0
  "$base/judge" -controller "${command//MENDED/$base/mended}" -contract "$contract" -seed "${SEED:-1}" -level "${level:-0}" -json >"$base/verdict" || code=$?
  if [[ $code -gt 1 ]]; then
    echo "error: $name could not be judged" >&2
    exit "$code"
  fi
  # shellcheck disable=SC2016 # jq's own variables
  jq -r --arg name "$name" '
    [.cases[] | select(.verdict != "passed") | {case, says: (.diagnosis | sub("\\|"; "/"; "g"))}] as $failed
    | "| \($name) | \(.contract) | \(if .reached > 0 then .reached else "none" end) | \([.cases[] | select(.verdict == "passed")] | length) of \(.cases | length) | "
      + (if $failed == [] then "nothing" else ($failed | map("**\(.case)**: \(.says)") | join("<br>")) end) + " |"' "$base/verdict" | tee -a "$base/table" >&2
done <"$folder/controllers.tsv"
if [[ $# -gt 0 ]]; then
  cat "$base/table"
  exit
fi
{
  # shellcheck disable=SC2016 # Markdown
  printf '# Verdicts of the judge\n\nWritten by `make judge-table`: each controller of [controllers.tsv](controllers.tsv) at all its levels, or as far as its row there says, with seed %s and Kubernetes %s.\n' \
    "${SEED:-1}" "$(sed -n 's,^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\).*,\1,p' scripts/controlplane/go.mod)"
  printf 'A case that failed is no verdict on a project: it says what would happen there, and each can be played again.\n\n'
  cat "$base/table"
} >"$folder/VERDICTS.md"
