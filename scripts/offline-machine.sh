#!/usr/bin/env bash
# offline-machine.sh: a learner's machine that has a clone and a pack, and no network.
#
# It packs this clone for kwok, clones what is committed, and works there without any
# module, with an empty home and a proxy that is dead: make unpack, then a lesson and
# an exercise. It prints the size of the pack and when each part began, and removes
# everything at the end.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/.."

# What is mounted below is mounted for this script and its children alone.
if [[ $(id -u) -eq 0 && ${1:-} != mounted ]] && unshare --mount true 2>/dev/null; then
  exec unshare --mount --propagation private "scripts/${0##*/}" mounted
fi

base=$(mktemp -d "${TMPDIR:-/tmp}/offline-machine.XXXXXX")
clone=$base/clone pack=$base/pack.tar.gz modules=$base/modules build=$base/build
net=() # how to run something without any network

# learner COMMAND...: in the clone, with nothing of this machine's but its programs
learner() {
  printf '\n--- %s (after %ds)\n' "$*" "$SECONDS"
  ${net[@]+"${net[@]}"} env --ignore-environment --chdir="$clone" \
    HOME="$base/home" TMPDIR="$base/tmp" PATH="$PATH" TERM=dumb CLUSTER=kwok \
    GOMODCACHE="$modules" GOCACHE="$build" GOFLAGS=-modcacherw GOTOOLCHAIN=local GOPROXY=off \
    HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9 \
    "$@"
}

# refuses COMMAND...: it must fail, and its output must say what follows "--"
refuses() {
  local command=() want output
  while [[ $1 != -- ]]; do command+=("$1") && shift; done
  want=$2
  if output=$(learner "${command[@]}" 2>&1); then
    printf '%s\noffline machine: this should have failed\n' "$output" >&2
    return 1
  fi
  if ! grep -q "$want" <<<"$output"; then
    printf '%s\noffline machine: this does not say %s\n' "$output" "$want" >&2
    return 1
  fi
  printf '%s\n' "$output" | tail -n 3
}

# shellcheck disable=SC2317,SC2329 # called by trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  if [[ -x $clone/.workshop/workshop ]]; then learner .workshop/workshop down || status=1; fi
  if [[ -n ${nobody:-} ]]; then kill "$nobody" 2>/dev/null || true; fi
  chmod -R u+w "$base" || status=1
  rm -rf "$base" || status=1
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$base/home" "$base/tmp" "$base/modules"
make pack CLUSTER=kwok PACK="$pack"
if [[ ${1:-} == mounted ]]; then
  # An empty folder in the place of this machine's modules. Go compiles nothing without
  # its sources; where they have the same path and content, it need not do so again.
  modules=$(go env GOMODCACHE) build=$(go env GOCACHE)
  mount --bind "$base/modules" "$modules"
  # Nor is there a network whose default route somebody could ask for, only this machine itself.
  if command -v ip >/dev/null && command -v nsenter >/dev/null && unshare --net true 2>/dev/null; then
    unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
    nobody=$!
    net=(nsenter --target "$nobody" --net)
    for ((try = 0; try < 50; try++)); do
      if [[ $(readlink "/proc/$nobody/ns/net") != "$(readlink /proc/self/ns/net)" ]]; then break; fi
      sleep 0.1
    done
    "${net[@]}" ip link set lo up
  fi
fi
git clone --quiet --no-hardlinks . "$clone"

head --bytes=10000000 "$pack" >"$base/half"
refuses make unpack PACK="$base/half" -- "is damaged"
if left=$(find "$base/modules" "$clone/.workshop" -type f 2>/dev/null | grep .); then
  printf 'offline machine: a damaged pack has left:\n%s\n' "$left" >&2
  exit 1
fi
refuses make doctor OFFLINE=1 -- "make unpack PACK=FILE"
learner make unpack PACK="$pack"
learner make doctor OFFLINE=1
learner make step N=1
learner make exercise N=2 TASK=retry
refuses make check N=2 TASK=retry -- "not done"
cp "$clone/02-clientset/conflict/main.go" "$clone/work/02-clientset/retry/"
learner make check N=2 TASK=retry
learner make down
printf '\noffline machine: ok after %ds\n' "$SECONDS"
