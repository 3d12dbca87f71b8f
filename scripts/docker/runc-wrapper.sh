#!/usr/bin/env bash
# An OCI runtime that is runc, for hosts that lack CAP_SYS_RESOURCE. A
# privileged container asks for every capability there is, and runc refuses to
# give one that the host itself does not have; so it is taken off the list.
set -euo pipefail

bundle=. process="" previous=""
for arg; do
  case $previous in
  --bundle | -b) bundle=$arg ;;
  --process | -p) process=$arg ;;
  esac
  case $arg in
  --bundle=*) bundle=${arg#*=} ;;
  --process=*) process=${arg#*=} ;;
  esac
  previous=$arg
done

# drop FILE FILTER: remove the capability from the lists that FILTER selects.
drop() {
  jq "$2 |= (. // {} | map_values(map(select(. != \"CAP_SYS_RESOURCE\"))))" "$1" >"$1.new"
  mv "$1.new" "$1"
}

for arg; do
  case $arg in
  create | run) drop "$bundle/config.json" .process.capabilities ;;
  exec) if [[ -n $process ]]; then drop "$process" .capabilities; fi ;;
  *) continue ;;
  esac
  break
done
exec runc "$@"
