#!/usr/bin/env bash
# build.sh: builds the workshop's own command into .workshop. The first time it says
# every ten seconds that it goes on; later ones are part of commands whose output counts.
# It runs in the bash 3.2 of macOS, too: the command then says that this bash is too old.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/.."

# progress speaks until its standard input ends. It starts no sleep, which would outlive it.
progress() {
  local pause=2 said=0
  while :; do
    local before=$SECONDS
    if read -r -t "$pause" || ((SECONDS - before + 1 < pause)); then return; fi
    if ((said++)); then
      echo "  ${SECONDS}s so far"
    else
      echo "Building the workshop's own command (once; about a minute where nothing is compiled yet)"
    fi
    pause=10
  done
}

# go build that is interrupted early leaves its temporary folder behind. On the disk of the
# command, Go moves what it has built to its place, where another make may be about to start it.
mkdir -p .workshop
if ! [[ -w .workshop ]]; then
  echo "error: $PWD/.workshop is somebody else's, such as root's after a sudo make; make it yours: sudo chown -R \"\$USER\" .workshop" >&2
  exit 1
fi
GOTMPDIR=$(mktemp -d "$PWD/.workshop/build.XXXXXX")
export GOTMPDIR
trap 'rm -rf "$GOTMPDIR"' EXIT
trap 'exit 130' INT TERM
if [[ -x .workshop/workshop ]]; then exec 3>/dev/null; else exec 3> >(progress >&2); fi
if ! go build -o .workshop/workshop ./cmd/workshop 3>&-; then
  scripts/doctor.sh lacks >&2 || true # such as a Go that is too old to read go.mod
  exit 1
fi
exec 3>&-
