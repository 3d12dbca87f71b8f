#!/usr/bin/env bash
# test-judge.sh: the judge finds nothing wrong with icecream, cert-keeper and a first controller, tells
# some faulty ones by name (make judge-mutants tells all), and makes a failing case smaller.
set -euo pipefail
unset CDPATH CLUSTER KUBECONFIG
cd "$(dirname "$0")/.."

base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
trap 'exit 130' INT TERM

# The same in each run, unless another one is asked for: make judge chooses new ones.
seed=${WORKSHOP_SEED:-1}

# Whatever the judge makes for itself has to be gone at the end.
mkdir "$base/tmp"
export TMPDIR=$base/tmp
nothing_left() {
  local left
  left=$(find "$base/tmp" -mindepth 1; find .workshop -maxdepth 1 -name kwok-judge; pgrep -f "$PWD/.workshop/judge/0" || true)
  [[ -z $left ]] || {
    printf 'error: left behind:\n%s\n' "$left" >&2
    return 1
  }
}

# judge CODE TEXT ARGS...: the judge has to exit with that code, and to say that.
go build -o "$base/judge" ./cmd/judge
judge() {
  local want=$1 text=$2 code=0
  shift 2
  "$base/judge" "$@" >"$base/out" 2>&1 || code=$?
  cat "$base/out"
  if [[ $code -ne $want ]] || ! grep -qF -- "$text" "$base/out"; then
    echo "error: exit code $code, want $want and: $text" >&2
    return 1
  fi
  nothing_left
}

printf -- '--- what cannot be judged\n'
make --no-print-directory judge 2>&1 | tee "$base/out" || true
grep -qF 06-controller/contracts/README.md "$base/out"
judge 2 "LEVEL=7: there is no such level" -controller true -contract mirror -level 7
judge 2 "has nothing outside of Kubernetes, so its levels are 1 to 5" -controller true -contract mirror -level 6
mkdir "$base/bad"
echo 'such: 1' >"$base/bad/contract.yaml"
judge 2 "contract.yaml:1: such: there is no such field" -controller true -contract "$base/bad"
judge 2 "the command watches the namespace default, and not that of its case" -controller 'go run ./03-informer/first-loop -namespace default' -contract mirror
sed 's/^scenario:$/&\n  nothing to delete:\n  - delete: {apiVersion: v1, kind: ConfigMap, metadata: {labels: {no: such}}}/; s/settle: 30s/settle: 10s/' 06-controller/contracts/mirror/contract.yaml >"$base/bad/contract.yaml"
judge 1 'scenario.nothing to delete[0].delete: there is no ConfigMap' -controller 'go run ./03-informer/first-loop -namespace {{.Namespace}}' -contract "$base/bad" -level 1

printf '\n--- an interrupt\n'
: >"$base/out" # or the last output would be taken for the first
"$base/judge" -controller 'bash -c "mktemp >/dev/null; exec go run ./03-informer/first-loop -namespace {{.Namespace}}"' -contract mirror >"$base/out" 2>&1 &
until [[ -n $(find "$base/tmp" -name 'tmp.*') ]]; do # the controller's file
  kill -0 $! || exit 1
  sleep 0.1
done
kill -TERM $!
code=0
wait $! || code=$?
[[ $code -eq 130 ]]
nothing_left

printf '\n--- a reader that ends\n'
{ "$base/judge" -controller 'go run ./03-informer/first-loop -namespace {{.Namespace}}' -contract mirror 2>&1 || [[ $? -eq 130 ]]; } | head -n 1
nothing_left

printf '\n--- icecream\n'
judge 0 'level 5 (is a good citizen) was reached' -seed "$seed" -controller 'go run ./06-controller/icecream -namespace {{.Namespace}}' -contract icecream

printf '\n--- what a reader of step 06 writes\n'
judge 0 'level 3 (survives the wire) was reached' -level 3 -seed "$seed" -controller 'go run ./06-controller/simple -namespace {{.Namespace}}' -contract simple

printf '\n--- cert-keeper of step 08\n'
judge 0 'level 4 (lives with others) was reached' -level 4 -seed "$seed" -controller 'go run ./08-webhooks/cert-keeper -namespace {{.Namespace}} -settle 1s' -contract cert-keeper

printf '\n--- coldroom of step 09, whose rooms are not in Kubernetes\n'
judge 0 'of the cases that match ^killed after a call, 0 failed' -level 6 -case '^killed after a call' -seed "$seed" \
  -controller 'go run ./09-outside/coldroom -namespace {{.Namespace}} -store {{.Outside}} -poll 1s -retry 3s -rate 200' -contract coldroom

printf '\n--- as a scorecard test of step 11\n'
go -C 11-operator-sdk/packager build -o "$base/bin/" . ./scoretests
"$base/bin/packager" bundle -version 0.1.0 -flavour workshop/pause:1 "$base/bundle"
PATH=$base/bin:$PATH "$base/bin/packager" scorecard -selector suite=judge -wait-time 5m "$base/bundle"
nothing_left

printf '\n--- faulty ones\n'
judge 0 '| it ends at 410 Gone |' -seed "$seed" -mutants '^it never forgets|^it remembers|^it takes over|^it ends at|^its finalizer comes'

printf '\n--- a failing case, made smaller\n'
sed 's/settle: 30s/settle: 10s/' 06-controller/contracts/mirror/contract.yaml >"$base/bad/contract.yaml"
sed '/DeleteFunc: enqueue/d' 03-informer/first-loop/controller.go >"$base/controller.go"
printf '{"Replace":{"%s":"%s"}}' "$PWD/03-informer/first-loop/controller.go" "$base/controller.go" >"$base/overlay.json"
judge 1 'of 32 steps' -shrink -level 1 -case '^objects before' -controller "go run -overlay=$base/overlay.json ./03-informer/first-loop -namespace {{.Namespace}}" -contract "$base/bad"
grep -Eq 'with [4-6] of 32 steps' "$base/out" # on a machine that stands still, a play may fail in another way
recording=$(sed -n "s/.*make judge REPLAY='\(.*\)'/\1/p" "$base/out")
judge 1 'again after somebody had deleted it' -replay "$recording"
rm "$recording"

printf '\n--- the repository of make new\n'
make --no-print-directory new GROUP=stable.example.org KIND=Widget DIR="$base/widgets"
make --no-print-directory -C "$base/widgets" judge CLONE="$PWD" LEVEL=1 SEED="$seed"
nothing_left
