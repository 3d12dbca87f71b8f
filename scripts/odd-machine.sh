#!/usr/bin/env bash
# odd-machine.sh: a learner's first commands on a machine unlike CI's, with all of
# its oddities at once: no root, spaces in paths, a proxy that is dead, umask 077,
# zsh, a ~/.curlrc, kubectl's preferences in ~/.kube, a foreign language and time
# zone, a go.work in the folder above, and variables that point elsewhere.
#
# It clones what is committed, lets a user of its own work there with copies of
# Go's caches, and fails if a command fails or leaves anything outside of the
# clone, TMPDIR and Go's caches. Needs root, useradd and zsh; without them it is
# skipped with exit code 77. The user and all files are removed at the end.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/.."

skip() {
  echo "odd machine: skipped: $*"
  exit 77
}
if [[ $(id -u) -ne 0 ]]; then skip "only root can make a user"; fi
for tool in useradd userdel runuser unshare zsh; do
  command -v "$tool" >/dev/null || skip "$tool is not on PATH"
done

# What is mounted below is mounted for this script and its children alone.
if [[ ${1:-} != mounted ]]; then
  unshare --mount true 2>/dev/null || skip "this root is not allowed to mount"
  exec unshare --mount --propagation private "scripts/${0##*/}" mounted
fi

base=$(mktemp -d /var/tmp/odd-machine.XXXXXX)
user=odd-${base##*.}
user=${user,,}
home=$base/home parent="$base/a parent" tmp="$base/a tmp" clone="$base/a parent/k8s workshop" caches=$base/caches

# running lists the user's processes, without those that only wait to be collected.
# shellcheck disable=SC2009 # pgrep does not tell them apart everywhere
running() { ps -u "$user" -o stat=,pid=,args= | grep -v '^Z' || true; }

# shellcheck disable=SC2317,SC2329 # called by trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  if id "$user" >/dev/null 2>&1; then
    # Nobody else is this user. One process may start another meanwhile.
    for _ in {1..100}; do
      [[ -n $(running) ]] || break
      pkill -KILL -u "$user" || true
      sleep 0.1
    done
    userdel --force "$user" 2>/dev/null || status=1
  fi
  rm -rf "$base" || status=1
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# link FROM TO: a copy without the bytes, where both are on one disk. The files
# stay root's, so that the user cannot change them; the folders are the user's.
# A file that somebody removes meanwhile is built again.
link() {
  mkdir -p "$(dirname "$2")"
  if [[ $(stat -c %d "$1") == $(stat -c %d "$base") ]]; then cp -al "$1" "$2" || true; else cp -a "$1" "$2"; fi
  find "$2" -type d -exec chown "$user:" {} + -exec chmod u+w {} +
}

chmod 755 "$base"
useradd --home-dir "$home" --create-home --shell "$(command -v zsh)" "$user"
mkdir "$parent" "$tmp" "$parent/other"
echo "include
fail
proxy = http://127.0.0.1:9
user-agent = odd" >"$home/.curlrc"
mkdir "$home/.kube"
echo "apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
defaults:
- {command: get, options: [{name: output, default: name}]}" >"$home/.kube/kuberc"
echo "module example.com/other" >"$parent/other/go.mod"
printf 'go %s\n\nuse ./other\n' "$(sed -n 's/^go //p' go.mod)" >"$parent/go.work"
git clone --quiet --no-hardlinks . "$clone"
mkdir "$clone/.workshop"
for folder in bin tools; do
  if [[ -d .workshop/$folder ]]; then cp -a --reflink=auto ".workshop/$folder" "$clone/.workshop/"; fi
done
chmod -R go-rwx "$clone" # as umask 077 makes them
chown -R "$user:" "$clone" "$parent" "$home" "$tmp"
built=$(go env GOCACHE)
link "$built" "$caches/build"
# Go writes its small index files again in place, so these are real copies.
find "$caches/build" -name '*-a' -delete
tar --directory "$built" --exclude '*-d' --create . --ignore-failed-read --warning=none | tar --directory "$caches/build" --extract
find "$caches/build" ! -name '*-d' -exec chown "$user:" {} +
modules=$(go env GOMODCACHE)
link "$modules" "$caches/mod"
# The modules keep their path, which is part of what the build cache goes by. A
# folder above that the user must not enter, such as /root, is an empty one to them.
private="" above=$modules
while [[ $above != / ]]; do
  if (((8#$(stat -c %a "$above") & 1) == 0)); then private=$above; fi
  above=$(dirname "$above")
done
if [[ -n $private ]]; then
  mount -t tmpfs -o mode=755 tmpfs "$private"
  mkdir -p "$modules"
fi
mount --bind "$caches/mod" "$modules"

# learner COMMAND...: as the user, in the clone, from a login shell
# shellcheck disable=SC2016 # zsh expands it
learner() {
  printf '\n--- %s (after %ds)\n' "$*" "$SECONDS"
  runuser --user "$user" -- env --ignore-environment \
    HOME="$home" USER="$user" LOGNAME="$user" SHELL="$(command -v zsh)" TERM=xterm PATH="$PATH" \
    TMPDIR="$tmp" TZ=Asia/Kathmandu LANG=tr_TR.UTF-8 CDPATH="$parent:/" \
    HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9 \
    KUBECONFIG=/nowhere/kubeconfig KUBERNETES_SERVICE_HOST=192.0.2.1 KUBERNETES_SERVICE_PORT=443 \
    GOMODCACHE="$modules" GOCACHE="$caches/build" CLUSTER=kwok RERUN="${RERUN:-}" LESSON_SHELL=zsh \
    zsh --login -c 'umask 077; cd "$0" && "$@"' "$clone" "$@"
}

# files lists what the user has outside of the clone, TMPDIR and Go's caches.
# Go itself counts its own use in the user's folder.
files() {
  find "$base" /tmp /var/tmp /dev/shm \( -path "$clone" -o -path "$tmp" -o -path "$caches" -o -path "$home/.config/go/telemetry" \) -prune \
    -o -user "$user" ! -path "$home/.config" ! -path "$home/.config/go" -print 2>/dev/null | sort -u
}

before=$(files)
learner make up
learner make step N=1
learner make step N=4
learner make test-step 1
# shellcheck disable=SC2016 # zsh expands it
echo 'source 01-curl/connect.sh && api /version | jq -r .major && [[ $PATH == */k8s\ workshop/* ]]' | learner make shell
learner make down
echo

failed=0
if ! diff <(echo "$before") <(files); then
  echo "odd machine: these files (>) were written outside of the clone" >&2
  failed=1
fi
if left=$(find "$tmp" -mindepth 1 | grep .); then
  printf 'odd machine: left in TMPDIR:\n%s\n' "$left" >&2
  failed=1
fi
if left=$(git -c safe.directory='*' -C "$clone" status --porcelain --ignored | grep -v '^!! .workshop/$'); then
  printf 'odd machine: changed in the clone:\n%s\n' "$left" >&2
  failed=1
fi
left=$(running)
if [[ -n $left ]]; then
  printf 'odd machine: still running after make down:\n%s\n' "$left" >&2
  failed=1
fi
if [[ $failed -eq 0 ]]; then echo "odd machine: ok after ${SECONDS}s"; fi
exit "$failed"
