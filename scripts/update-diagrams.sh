#!/usr/bin/env bash
# Makes the pictures of the lessons' diagrams, internal/web/diagrams/*.svg, that are
# missing, and removes those that no lesson shows any more. A picture is named after
# the hash of its diagram, so that one without changes needs neither Node.js nor a network.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$PWD/internal/web/diagrams
renderer=$PWD/.workshop/diagrams-$(cat scripts/diagrams/* | git hash-object --stdin) # another one after a change
used=()
# One a file, without its fences.
split=$(mktemp -d)
trap 'rm -rf "$split"' EXIT
for readme in [0-9][0-9]-*/README.md [0-9][0-9]-*/reference.md; do
  if [[ ! -e $readme ]]; then continue; fi
  mkdir -p "$split/$readme"
  awk -v out="$split/$readme/" '/^```mermaid$/ { on = 1; n++; next } /^```$/ { on = 0 } on { print > (out n) }' "$readme"
done
for file in "$split"/*/*/*; do
  readme=${file#"$split/"}
  readme=${readme%/*}
  diagram=$(<"$file")
  name=$(git hash-object --stdin <<<"$diagram").svg
  used+=("$name")
  if [[ -e $out/$name ]]; then continue; fi
  if [[ ! -d $renderer ]]; then
    command -v npm >/dev/null || { echo "error: the diagram of $readme has no picture yet: install Node.js 20 with npm, which draws it" >&2; exit 1; }
    rm -rf "$PWD"/.workshop/diagrams*
    mkdir -p "$renderer.new"
    cp scripts/diagrams/* "$renderer.new"
    npm ci --prefix "$renderer.new" --ignore-scripts --no-audit --no-fund --silent || { rm -rf "$renderer.new"; exit 1; }
    mv "$renderer.new" "$renderer" # whole, or not there
  fi
  node "$renderer/render.mjs" <<<"$diagram" >"$out/$name.new" || { rm -f "$out/$name.new"; echo "error: the diagram of $readme could not be drawn" >&2; exit 1; }
  mv "$out/$name.new" "$out/$name"
  echo "$readme: the diagram is internal/web/diagrams/$name"
done
for picture in "$out"/*.svg; do
  [[ " ${used[*]} " == *" ${picture##*/} "* ]] || rm -f "$picture"
done
