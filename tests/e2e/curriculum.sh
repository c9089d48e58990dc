#!/usr/bin/env bash
# curriculum.sh BUILD - prompts by pass rate and difficulty, and replays of failed ones, in whole runs.
#
# A run that kill -9 ends once it has saved, and that is then started again, leaves the metrics and the
# last snapshot of an undisturbed one, which has the state of the curriculum.  Failed prompts come back.
set -euo pipefail

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
golden=tests/golden/preference
passed=0 failed=0

awk '{ print "{\"input\": \"question " NR "\", \"metadata\": {\"level\": " NR % 5 ", \"rate\": " NR / 40 "}}" }' \
  <(seq 20) > "$dir/prompts.jsonl"

run() { # run NAME ROLLOUTS FLAGS...
  local name=$1 rollouts=$2
  shift 2
  "$build/miles" "$@" --hf-checkpoint $golden/model --prompt-data "$dir/prompts.jsonl" --rm-type deterministic_random \
    --n-samples-per-prompt 2 --rollout-batch-size 4 --rollout-max-response-len 4 --num-rollout "$rollouts" --lr 1e-3 \
    --lr-decay-style constant --save-interval 1 --save "$dir/$name" --load "$dir/$name" > "$dir/$name.log" 2>&1
}

same() {
  cmp "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" && diff -r "$dir/$1/iter_0000005" "$dir/$2/iter_0000005"
}

killed() { # killed NAME FLAGS...
  local name=$1 pid
  shift
  run "$name" 6 "$@" 2> /dev/null &
  pid=$!
  while kill -0 $pid 2> /dev/null && [ ! -e "$dir/$name/latest_checkpointed_iteration.txt" ]; do sleep 0.02; done
  pkill -9 -P $pid 2> /dev/null || true
  wait $pid 2> /dev/null || true
  run "$name" 6 "$@"
}

check() { # check WHAT NAME FLAGS...
  local what=$1 name=$2
  shift 2
  if run "$name" 6 "$@" && killed "$name.killed" "$@" 2> /dev/null && same "$name" "$name.killed" &&
    grep -rq '"curriculum": {' "$dir/$name"/iter_0000005/; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL $what"
    tail -n 3 "$dir/$name.log" "$dir/$name.killed.log" || true
  fi
}

check "failed prompts come back in a killed run, too" replay train --prompt-sampling learnable --pass-rate-key rate \
  --pass-reward 0.5 --replay-hard-prompts 0.5 --replay-hard-pass-rate 0.5
grep -q '"rollout/curriculum/replays": [1-9]' "$dir/replay/metrics.jsonl" || { failed=$((failed + 1)) && echo "FAIL no prompt was replayed"; }
check "a killed run goes on with its target difficulty" level train-async --prompt-sampling difficulty --difficulty-key level \
  --pass-reward 0.5 --dynamic-sampling-filter-path check_reward_nonzero_std --over-sampling-batch-size 6
grep -q '"rollout/curriculum/target_difficulty": [0-9]*\.[0-9]' "$dir/level/metrics.jsonl" || { failed=$((failed + 1)) && echo "FAIL the target did not move"; }

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
