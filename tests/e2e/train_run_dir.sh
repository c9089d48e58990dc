#!/usr/bin/env bash
# train_run_dir.sh BUILD [tensorboard] - a run is interrupted, goes on, and what it leaves can be
# read, by TensorBoard too.
set -euo pipefail

build=$1
dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true; rm -rf "$dir"' EXIT
"$build/tools/quickstart_make" "$dir" 1

train() {
  exec "$build/miles" train --hf-checkpoint "$dir/model" --save "$dir/run" --load "$dir/run" \
    --prompt-data "$dir/prompts.jsonl" --input-key messages --label-key label \
    --apply-chat-template --rm-type math --rollout-batch-size 4 --n-samples-per-prompt 2 \
    --rollout-max-response-len 8 --profile "$@"
}

# Ctrl-C: the rollout is finished and saved, and the run ends well.
(train --num-rollout 100000) > "$dir/log" 2>&1 &
pid=$!
for _ in $(seq 300); do
  grep -q '^rollout 2,' "$dir/log" && break
  sleep 0.1
done
kill -INT "$pid"
wait "$pid"
pid=
saved=$(cat "$dir/run/latest_checkpointed_iteration.txt")
grep "^rollout [0-9]*," "$dir/log" | tail -n 1 | grep "^rollout $saved,"
grep "^stopped after rollout $saved; saved in $dir/run/iter_" "$dir/log"
tail -n 1 "$dir/log" | grep -e "--load $dir/run"

# It goes on, is killed on the way, and goes on again: no row is missing, none is there twice.
(train --num-rollout 100000 --save-interval 3) > "$dir/log" 2>&1 &
pid=$!
for _ in $(seq 300); do
  grep -q "^rollout $((saved + 8))," "$dir/log" && break
  sleep 0.1
done
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
pid=
saved=$(cat "$dir/run/latest_checkpointed_iteration.txt")
(train --num-rollout $((saved + 3))) > "$dir/log"
grep "^Loaded checkpoint from .*; resuming at rollout $((saved + 1))" "$dir/log"
rounds=$(grep -c '"rollout/raw_reward"' "$dir/run/metrics.jsonl")
[ "$rounds" = $((saved + 3)) ]

"$build/miles" inspect "$dir/run" > "$dir/samples"
[ "$(grep -c '^rollout' "$dir/samples")" = $((8 * rounds)) ]
"$build/miles" inspect "$dir/run" --step 1 --tokens --limit 1 | grep -q 'log-prob'
[ "${2-}" = tensorboard ] || exit 0
tools/with-python.sh tensorboard tests/e2e/run_directory.py "$dir/run"
