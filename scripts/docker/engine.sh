#!/usr/bin/env bash
# engine.sh start|stop: a Docker engine for a bare machine, such as a CI sandbox.
#
# start does nothing where an engine answers. Else it installs one (Debian and
# Ubuntu, as root), starts it and waits until it answers. Images stay in the
# engine's usual place, so that the next run finds them.
# stop ends the engine that start has started in this clone, and no other.
set -euo pipefail
unset CDPATH # with it cd may go elsewhere
cd "$(dirname "$0")/../.."

state=$PWD/.workshop/docker
pidfile=$state/dockerd.pid

fail() {
  echo "engine.sh: $*" >&2
  exit 1
}

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start() {
  if answers; then
    echo "A Docker engine answers: $(docker version --format '{{.Server.Version}}')"
    return
  fi
  [[ $EUID -eq 0 ]] || fail "no Docker engine answers, and only root can start one: start yours, or run this as root"
  if ! command -v dockerd >/dev/null; then
    command -v apt-get >/dev/null || fail "no Docker engine is installed: see https://docs.docker.com/engine/install"
    echo "Installing a Docker engine"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends docker.io iptables jq >/dev/null
    for _ in {1..25}; do # where there is systemd, the package has started it
      if [[ ! -d /run/systemd/system ]] || answers; then break; fi
      sleep 0.2
    done
    if answers; then
      echo "Docker engine $(docker version --format '{{.Server.Version}}') started"
      return
    fi
  fi
  mkdir -p "$state"

  local options=()
  # Bit 24 of the bounding set is CAP_SYS_RESOURCE, see capabilities(7).
  local bounding
  bounding=$(awk '/^CapBnd:/ {print $2}' /proc/self/status)
  if (((16#$bounding >> 24 & 1) == 0)); then
    echo "This host lacks CAP_SYS_RESOURCE: containers run through scripts/docker/runc-wrapper.sh"
    options+=(--add-runtime "without-sys-resource=$PWD/scripts/docker/runc-wrapper.sh" --default-runtime without-sys-resource)
  fi
  # Pid files of an engine that was killed, as when a container was stopped, would keep a new one from starting:
  # by now another process may have that number.
  rm -f "$pidfile"
  pgrep -x dockerd >/dev/null 2>&1 || rm -f /var/run/docker/containerd/containerd.pid
  setsid nohup dockerd --pidfile "$pidfile" "${options[@]}" </dev/null >"$state/dockerd.log" 2>&1 &
  for _ in {1..150}; do # thirty seconds; it takes about two
    if answers; then
      echo "Docker engine $(docker version --format '{{.Server.Version}}') started"
      return
    fi
    kill -0 $! 2>/dev/null || break
    sleep 0.2
  done
  tail -n 15 "$state/dockerd.log" >&2
  stop
  fail "the Docker engine did not start; its log is above"
}

# running PID: is it our dockerd? One that has ended and that nobody has
# collected yet has no executable any more.
running() { [[ $(readlink "/proc/$1/exe") == */dockerd ]]; }

stop() {
  [[ -f $pidfile ]] || return 0
  local pid
  pid=$(<"$pidfile")
  if running "$pid"; then
    kill "$pid"
    for _ in {1..150}; do
      running "$pid" || break
      sleep 0.2
    done
    if running "$pid"; then kill -9 "$pid"; fi
    echo "Docker engine stopped"
  fi
  rm -rf "$state"
}

case ${1:-} in
start | stop) "$1" ;;
*) fail "usage: engine.sh start|stop" ;;
esac
