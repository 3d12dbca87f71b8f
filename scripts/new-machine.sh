#!/usr/bin/env bash
# new-machine.sh: a learner's first command of all, on a machine that has nothing yet.
#
#   scripts/new-machine.sh [COMMAND...]     default: make tour
#
# It clones what is committed and runs the command there with empty caches of Go and an
# empty home, as a user of its own where it may make one. Modules come from this
# machine's own download folder, so no network is used; the control plane's binaries are
# given. Before that it asks how soon make doctor says its first line. It prints how long
# each part took, and fails if the command fails or leaves a process or a temporary file.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/.."
if [[ $# -eq 0 ]]; then set -- make tour; fi

base=$(mktemp -d /var/tmp/new-machine.XXXXXX)
clone=$base/workshop home=$base/home tmp=$base/tmp
user=$(id -un) as=()
if [[ $(id -u) -eq 0 ]] && command -v useradd runuser >/dev/null; then
  user=new-${base##*.}
  user=${user,,}
  as=(runuser --user "$user" --)
fi

# running PATTERN: lists the processes with such a HOME, without those that only wait to be collected.
running() {
  local environ pid
  for environ in /proc/[0-9]*/environ; do
    pid=${environ#/proc/} pid=${pid%/environ}
    if { tr '\0' '\n' <"$environ"; } 2>/dev/null | grep -q "^HOME=$1"; then
      ps -o pid=,stat=,args= -p "$pid" | awk '$2 !~ /^Z/' || true
    fi
  done
}

# shellcheck disable=SC2317,SC2329 # called by trap
finish() {
  local status=$?
  trap - EXIT INT TERM
  # Also a cluster of a command that has failed: its programs have a home in the clone.
  running "$base/" | while read -r pid _; do kill -KILL "$pid" 2>/dev/null || true; done
  if [[ ${#as[@]} -gt 0 ]] && id "$user" >/dev/null 2>&1; then userdel --force "$user" 2>/dev/null || status=1; fi
  chmod -R u+w "$base" && rm -rf "$base" || status=1
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# What a network and an earlier day would bring. Nothing here owes that to another script.
modules=(. scripts/codegen)
if [[ $* != 'make tour' ]]; then modules+=(scripts/kubebuilder 10-kubebuilder/icecream 10-kubebuilder/programs 11-operator-sdk/packager); fi
for module in "${modules[@]}"; do go -C "$module" mod download; done
if [[ ! -x .workshop/bin/kube-apiserver ]]; then make up down CLUSTER=kwok; fi

chmod 755 "$base"
mkdir "$tmp" "$home" "$base/proxy"
# A link where both are on one disk. The folders are read by somebody else.
download=$(go env GOMODCACHE)/cache/download
cp -a --link "$download/." "$base/proxy" 2>/dev/null || cp -a "$download/." "$base/proxy"
# Less what nobody has downloaded there for this: some other command has only asked about it.
find "$base/proxy" -name '*.info' | while IFS= read -r info; do
  [[ -e ${info%.info}.zip ]] || rm "$info"
done
git clone --quiet --no-hardlinks . "$clone"
mkdir "$clone/.workshop"
cp -a .workshop/bin "$clone/.workshop/"
if [[ ${#as[@]} -gt 0 ]]; then
  useradd --home-dir "$home" --no-create-home --shell "$(command -v bash)" "$user"
  chown -R "$user:" "$clone" "$home" "$tmp"
  mkdir "$base/go"
  chown "$user:" "$base/go"
fi

# learner COMMAND...: in the clone, with nothing of this machine's but its programs
learner() {
  "${as[@]}" env --ignore-environment --chdir="$clone" \
    HOME="$home" USER="$user" LOGNAME="$user" PATH="$PATH" TMPDIR="$tmp" TERM=dumb CLUSTER=kwok \
    GOMODCACHE="$base/go/mod" GOCACHE="$base/go/build" GOTOOLCHAIN=local GOPROXY="file://$base/proxy" GOSUMDB=off \
    "$@"
}

begin=${EPOCHREALTIME/[.,]/}
exec 3< <(learner make doctor 2>&1)
read -r first <&3
exec 3<&- # it has nobody to speak to any more, and ends
milliseconds=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
printf 'make doctor says after %d ms: %s\n' "$milliseconds" "$first"
if [[ $first != ok* ]]; then exit 1; fi

printf '\n--- %s\n' "$*"
SECONDS=0
learner "$@"
printf '\nnew machine: %s took %ds\n' "$*" "$SECONDS"
learner .workshop/workshop down

failed=0
if left=$(find "$tmp" -mindepth 1 | grep .); then
  printf 'new machine: left in TMPDIR:\n%s\n' "$left" >&2
  failed=1
fi
left=$(running "$base/") # that of a control plane is in the clone
if [[ -n $left ]]; then
  printf 'new machine: still running:\n%s\n' "$left" >&2
  failed=1
fi
exit "$failed"
