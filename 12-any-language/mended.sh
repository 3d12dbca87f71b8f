#!/usr/bin/env bash
# mended.sh: makes copies of this step's controllers with the patches in mends, or with others.
#
#   mended.sh DIR [PATCH...]  DIR/12-any-language/icecream.sh, .py and .mjs; a PATCH is below this folder
set -euo pipefail
unset CDPATH
[[ $# -ge 1 && -d $1 ]] || {
  echo "usage: mended.sh DIR [PATCH...]" >&2
  exit 2
}
to=$(cd "$1" && pwd)/12-any-language
shift
cd "${BASH_SOURCE[0]%/*}"
[[ $# -gt 0 ]] || set -- mends/*.patch
mkdir "$to"
cp icecream.* "$to"
# What the copies look for beside them.
ln -s "$PWD/../01-curl" "$to/../01-curl"
ln -s "$PWD/node_modules" "$to/node_modules"
for patch; do
  # Without the ceiling, git would look for a repository around the copies.
  GIT_CEILING_DIRECTORIES=${to%/*} git -C "$to" apply "$PWD/$patch"
done
