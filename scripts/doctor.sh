#!/usr/bin/env bash
# doctor.sh: can this machine run the workshop? What bash alone can check comes at
# once, also where nothing is compiled yet. The workshop's own command, which is built
# then, checks the rest.
#
#   scripts/doctor.sh          everything; OFFLINE=1 also looks for what a network would bring
#   N=12 scripts/doctor.sh     also the languages of step 12
#   scripts/doctor.sh lacks    only what is missing or too old, a line each; fails if there is any
#
# It has to run in the bash 3.2 of macOS, if only to say that it is too old, and
# calls no program but those that it checks.
set -u
unset CDPATH
cd "${BASH_SOURCE[0]%/*}/.." || exit 1

brief=${1:-}
checks=0 failed=0
# finding MARK CHECK DETAIL [FIX]
finding() {
  checks=$((checks + 1))
  if [[ $1 == FAIL ]]; then failed=$((failed + 1)); fi
  if [[ -n $brief ]]; then
    if [[ $1 == FAIL ]]; then echo "$2: $3; $4"; fi
    return
  fi
  printf '%-4s  %-8s %s\n' "$1" "$2" "$3"
  if [[ -n ${4:-} ]]; then printf '      %-8s -> %s\n' "" "$4"; fi
}

# older A B: is version A older than B? Numbers are compared from left to right.
older() {
  local i a b
  IFS=. read -r -a a <<<"$1"
  IFS=. read -r -a b <<<"$2"
  for i in 0 1 2; do
    if ((10#${a[i]:-0} != 10#${b[i]:-0})); then
      ((10#${a[i]:-0} < 10#${b[i]:-0}))
      return
    fi
  done
  return 1
}

check_go() {
  local need="" line word version
  while read -r word line; do
    if [[ $word == go ]]; then need=$line; fi
  done <go.mod
  if [[ $(go version 2>/dev/null) =~ go([0-9]+\.[0-9]+(\.[0-9]+)?) ]]; then
    version=${BASH_REMATCH[1]}
    if ! older "$version" "$need"; then
      finding ok go "version $version, at least $need needed"
      return
    fi
    finding FAIL go "version $version, at least $need needed" "install Go $need or newer: https://go.dev/dl"
  else
    finding FAIL go "no working go on PATH" "install Go $need or newer: https://go.dev/dl"
  fi
}

# tool NAME WHY [OLDEST BECAUSE]: the first line of NAME --version holds its version:
# "GNU bash, version 5.2.15(1)-release", "curl 7.88.1 (...)", "jq-1.7.1".
tool() {
  local name=$1 why=$2 oldest=${3:-} because=${4:-} path says
  local way="apt-get install $name, brew install $name, or your system's way"
  if ! path=$(type -P "$name"); then
    finding FAIL "$name" "not on PATH; $why" "install it: $way"
    return
  fi
  if [[ -z $oldest ]]; then
    finding ok "$name" "$path"
    return
  fi
  local newer="install a newer one first on PATH: $way"
  if ! says=$("$path" --version 2>&1 </dev/null); then
    finding FAIL "$name" "$path does not work: ${says%%$'\n'*}" "$newer"
  elif [[ ! ${says%%$'\n'*} =~ [0-9]+\.[0-9]+(\.[0-9]+)? ]]; then
    finding note "$name" "$path does not tell its version" "make sure that it is $oldest or newer"
  elif older "${BASH_REMATCH[0]}" "$oldest"; then
    finding FAIL "$name" "$path is version ${BASH_REMATCH[0]}, at least $oldest needed: $because" "$newer"
  else
    finding ok "$name" "$path, version ${BASH_REMATCH[0]}"
  fi
}

check_go
without_go=$failed
tool bash "scripts and lessons run in it" 4.4 "in older ones an empty array ends a script"
tool make "it is how everything is started" 3.81 "the Makefile is not written for older ones"
tool git "it fetches the workshop"
tool curl "step 01 speaks HTTP with it" 7.76 "older ones have no --fail-with-body"
tool jq "step 01 reads JSON with it" 1.6 "older ones are not tried"
if [[ ${N:-} == 12 && -z $brief ]]; then
  for language in python node; do
    if says=$(12-any-language/runtimes.sh "$language" 2>&1); then
      finding ok "$language" "${says##*$'\n'}"
    else
      says=${says##*$'\n'}
      finding FAIL "$language" "one of step 12's controllers is written in it" "${says#"$language: "}"
    fi
  done
fi

if [[ -n $brief ]]; then exit $((failed > 0)); fi
if [[ $without_go -gt 0 ]] || ! type -P make >/dev/null; then
  echo "error: $failed of $checks checks failed; disk, memory and cluster are checked once Go and make are there" >&2
  exit 1
fi
make --no-print-directory build || exit 1
exec .workshop/workshop doctor "${OFFLINE:-}" "$failed" "$checks"
