#!/usr/bin/env bash
# train_parquet.sh BUILD - a run on a parquet file, interrupted and resumed, leaves the bytes of a run
# on the same rows as JSON lines: metrics, samples, weights.
set -euo pipefail

build=$1
rows=tests/golden/parquet/prompts
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/tools/quickstart_make" "$dir" 1
gzip -c $rows.jsonl > "$dir/rows.jsonl.gz"

train() { # train NAME DATA EVAL FLAGS...
  "$build/miles" train --hf-checkpoint "$dir/model" --save "$dir/$1" --load "$dir/$1" --prompt-data "$2" \
    --input-key messages --label-key label --metadata-key metadata --apply-chat-template --rollout-shuffle \
    --rollout-max-prompt-len 100 --rm-type math --rollout-batch-size 8 --n-samples-per-prompt 2 --rollout-max-response-len 8 \
    --eval-prompt-data rows "$3" --eval-interval 3 --save-interval 3 --lr 1e-3 --lr-decay-style constant --entropy-coef 0.1 \
    --save-debug-rollout-data "$dir/$1/samples/{rollout_id}.jsonl.zst" "${@:4}" > "$dir/$1.log"
}

same() { # same NAME: its run left what that on lines left
  cmp "$dir/lines/metrics.jsonl" "$dir/$1/metrics.jsonl"
  diff -r "$dir/lines/samples" "$dir/$1/samples"
  cmp "$dir/lines/iter_0000005/model.safetensors" "$dir/$1/iter_0000005/model.safetensors"
}

train lines $rows.jsonl "$rows.jsonl@[-4:]" --num-rollout 6
train columns $rows.parquet "$rows.parquet@[-4:]" --num-rollout 3
train columns $rows.parquet "$rows.parquet@[-4:]" --num-rollout 6
same columns
train packed "$dir/rows.jsonl.gz" "$dir/rows.jsonl.gz@[-4:]" --num-rollout 6
same packed
train several "$rows.parquet@[:10],$rows.jsonl@[10:25],$rows.parquet@[25:]" "$rows.parquet@[36:]" --num-rollout 6
same several
