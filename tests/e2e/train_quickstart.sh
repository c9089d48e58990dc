#!/usr/bin/env bash
# train_quickstart.sh BUILD SEED [FAMILY] - the quickstart learns what it promises.
#
# Accuracy on unseen problems is 15 to 50 % after sft and at least 30 points higher after
# train, rollout and training log-probs are equal to the bit in every rollout, and the command in
# the last line of the output starts a server.
set -euo pipefail

build=$1
seed=$2
family=${3:-qwen3}
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$dir"' EXIT

MILES_BUILD=$build recipes/quickstart.sh "$dir/run" "$seed" "$family" | tee "$dir/log"

awk '/^accuracy/ {
  match($0, /[0-9.]+% after miles sft/); before = substr($0, RSTART) + 0
  match($0, /[0-9.]+% after miles train/); after = substr($0, RSTART) + 0
  found = 1
}
END {
  if (!found || before < 15 || before > 50 || after < before + 30) {
    print "accuracy went from " before " to " after; exit 1
  }
}' "$dir/log"

rounds=$(grep -c '"rollout/raw_reward"' "$dir/run/rl/metrics.jsonl")
equal=$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$dir/run/rl/metrics.jsonl")
if [ "$rounds" != "$equal" ]; then
  echo "rollout and training agree in $equal of $rounds rounds"
  exit 1
fi

read -ra serve <<< "$(tail -n 1 "$dir/log")"
"${serve[@]}" --port 0 > "$dir/serve" &
server=$!
for _ in $(seq 100); do
  grep -q '^serving' "$dir/serve" && break
  sleep 0.1
done
grep '^serving' "$dir/serve"
