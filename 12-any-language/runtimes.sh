#!/usr/bin/env bash
# runtimes.sh: finds what the controllers of this step need beside Go, and prints a line for
# each; what is missing it says on stderr, with the way to install it, and fails.
#
#   runtimes.sh               all
#   runtimes.sh python        only the path of a Python that has the package kubernetes
#   runtimes.sh node          only the path of a Node.js; installs the packages of package-lock.json
set -uo pipefail
unset CDPATH
cd "${BASH_SOURCE[0]%/*}" || exit 1

missing() {
  echo "$1" >&2
  return 1
}

find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import kubernetes' 2>/dev/null && type -P "$python" && return
  done
  missing "python: no python3 has the package kubernetes: apt-get install python3-kubernetes, or pip install kubernetes in a virtual environment that you activate"
}

find_node() {
  local node version
  node=$(type -P node) && type -P npm >/dev/null || missing "node: node and npm are not both on PATH: apt-get install nodejs npm, brew install node, or your system's way" || return
  version=$("$node" --version)
  version=${version#v}
  [[ ${version%%.*} -ge 18 ]] || missing "node: $node is $version, and the client needs 18 or later" || return
  # npm ci makes node_modules what package-lock.json says, and nothing else. On stdout it only counts the packages,
  # and the lesson, which installs them where nothing is installed yet, shows no output there.
  [[ node_modules/.package-lock.json -nt package-lock.json ]] || { npm ci --cache ../.workshop/npm --no-audit --no-fund --loglevel error && touch node_modules/.package-lock.json; } >/dev/null ||
    missing "node: npm could not install what package-lock.json names: look at what it said above" || return
  echo "$node"
}

case ${1:-} in
python | node) "find_$1" ;;
'')
  failed=0
  for name in python node; do
    if path=$("find_$name"); then printf '%-8s%s\n' "$name" "$path"; else failed=1; fi
  done
  exit "$failed"
  ;;
*) missing "usage: runtimes.sh [python|node]" ;;
esac
