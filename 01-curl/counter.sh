#!/usr/bin/env bash
# counter.sh WRITERS ROUNDS: writers count up one annotation at the same time.
# Each round reads, adds 1 and puts; on 409 it reads again and retries. The sum
# is exact, however often they collide.
set -euo pipefail
source "$(dirname "$0")/connect.sh"

writers=${1:-4} rounds=${2:-10}
counter=/api/v1/namespaces/$NAMESPACE/configmaps/counter

recreate "${counter%/counter}" counter '{"metadata": {"name": "counter", "annotations": {"count": "0"}}, "data": {"note": "keep me"}}'

add_one() { # prints the HTTP code
  api "$counter" |
    jq '.metadata.annotations.count |= (tonumber + 1 | tostring)' |
    api "$counter" --request PUT --json @- --output /dev/null --write-out '%{http_code}'
}

writer() {
  local round code wait pause
  for ((round = 1; round <= rounds; round++)); do
    for ((wait = 1; ; wait = wait < 4 ? 2 * wait : wait)); do
      code=$(add_one)
      case $code in
      200) break ;;
      409) echo conflict ;;
      *) echo "counter.sh: HTTP $code" >&2; return 1 ;;
      esac
      # Back off for a random time, or the same writers collide again.
      printf -v pause '0.%03d' $((RANDOM % (200 * wait)))
      sleep "$pause"
    done
  done
}

pids=()
for ((i = 0; i < writers; i++)); do
  writer >"$PKI/writer-$i" &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done # wait alone says nothing of a writer that gave up

api "$counter" | jq -r --arg conflicts "$(cat "$PKI"/writer-* | grep -c conflict)" \
  '"count: \(.metadata.annotations.count) after \($conflicts) conflicts"'
exit "$failed"
