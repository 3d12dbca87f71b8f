#!/usr/bin/env bash
# mended.sh: makes copies of this step's controllers with the patches in mends.
#
#   mended.sh DIR             DIR/12-any-language/icecream.sh, .py and .mjs
set -euo pipefail
unset CDPATH
[[ $# -eq 1 && -d $1 ]] || {
  echo "usage: mended.sh DIR" >&2
  exit 2
}
to=$(cd "$1" && pwd)/12-any-language
cd "${BASH_SOURCE[0]%/*}"
mkdir "$to"
cp icecream.* "$to"
# What the copies look for beside them.
ln -s "$PWD/../01-curl" "$to/../01-curl"
ln -s "$PWD/node_modules" "$to/node_modules"
for patch in "$PWD"/mends/*.patch; do
  # Without the ceiling, git would look for a repository around the copies.
  GIT_CEILING_DIRECTORIES=${to%/*} git -C "$to" apply "$patch"
done
