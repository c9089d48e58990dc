#!/usr/bin/env bash
# quickstart.sh [DIR] [SEED] [FAMILY] [FLAG..] - trains a small model to solve arithmetic word problems.
#
# Creates a model with random weights and problems with answers, fine-tunes it on example answers
# of which many are wrong (miles sft), then trains it with a reward for right answers (miles train).
# This takes two minutes on two cores.  DIR/sft/latest and DIR/rl/latest are Hugging Face checkpoints.
# SFT_STEPS and ROLLOUTS set the numbers of steps and rollouts.  With LORA_RANK, miles train trains a
# LoRA adapter of that rank, and DIR/rl/latest is the model with the adapter merged.  FROM names the DIR
# of an earlier run with this seed and family, whose model, problems and fine-tuning are copied.  Flags are
# those of miles train.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
build=${MILES_BUILD:-$here/build/release}
dir=${1:-$here/build/quickstart}
seed=${2:-1}
family=${3:-qwen3} # or qwen3_moe, qwen3_next
shift $(($# < 3 ? $# : 3))
sft_steps=${SFT_STEPS:-500}
rollouts=${ROLLOUTS:-120}
lora_rank=${LORA_RANK:-0}
[ "$family" = qwen3_next ] && rollouts=${ROLLOUTS:-200} # it learns more slowly

began=$(date +%s)
rm -rf "$dir"
if [ -n "${FROM:-}" ]; then
  echo "1 of 3: copying the model and the problems of $FROM to $dir"
  mkdir -p "$dir"
  cp -r "$FROM"/model "$FROM"/sft "$FROM"/*.jsonl "$dir"
else
  echo "1 of 3: creating a small model with random weights and arithmetic word problems in $dir"
  "$build/tools/quickstart_make" "$dir" "$seed" "$family"
fi

SFT_ARGS=(
  --hf-checkpoint "$dir/model"
  --prompt-data "$dir/lessons.jsonl"
  --input-key messages
  --rollout-shuffle
  --rollout-seed "$seed"
  --rollout-batch-size 32
  --num-rollout "$sft_steps"
  --lr 3e-3
  --lr-decay-style linear
  --lr-warmup-iters 10
  --adam-beta2 0.98
  --weight-decay 0
  --no-recompute-loss-function
  --save "$dir/sft"
)
echo "2 of 3: miles sft, $sft_steps steps on example answers of which many are wrong (every 50th step is shown)"
[ -d "$dir/sft" ] || "$build/miles" sft "${SFT_ARGS[@]}" | sed -un '0~50p'
ln -sfn "iter_$(printf %07d $((sft_steps - 1)))" "$dir/sft/latest"

CKPT_ARGS=(
  --hf-checkpoint "$dir/sft/latest"
  --save "$dir/rl"
)
ROLLOUT_ARGS=(
  --prompt-data "$dir/prompts.jsonl"
  --input-key messages
  --label-key label
  --apply-chat-template
  --rollout-shuffle
  --rollout-seed "$seed"
  --rm-type math
  --num-rollout "$rollouts"
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 8
  --rollout-temperature 1
)
EVAL_ARGS=(
  --eval-prompt-data unseen "$dir/unseen.jsonl"
  --eval-interval "$rollouts"
)
GRPO_ARGS=(
  --advantage-estimator grpo
  --eps-clip 0.2
  --eps-clip-high 0.28
  --observe-training-entropy
)
LORA_ARGS=()
lr=5e-4
if [ "$lora_rank" -gt 0 ]; then
  LORA_ARGS=(--lora-rank "$lora_rank" --lora-alpha $((2 * lora_rank)) --target-modules all-linear)
  lr=5e-3
fi
OPTIMIZER_ARGS=(
  --optimizer adam
  --lr "$lr"
  --lr-decay-style constant
  --lr-warmup-iters 5
  --adam-beta2 0.98
  --weight-decay 0
)
PERF_ARGS=(
  --use-dynamic-batch-size
  --max-tokens-per-gpu 4096
  --no-recompute-loss-function
)
SGLANG_ARGS=(
  --sglang-max-running-requests 128
)
MISC_ARGS=(
  --save-debug-rollout-data "$dir/rounds/{rollout_id}.jsonl.zst"
)
echo "3 of 3: miles train, $rollouts rollouts with a reward for right answers (every 20th line is shown)"
"$build/miles" train \
  "${CKPT_ARGS[@]}" \
  "${ROLLOUT_ARGS[@]}" \
  "${EVAL_ARGS[@]}" \
  "${GRPO_ARGS[@]}" \
  "${LORA_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" \
  "${PERF_ARGS[@]}" \
  "${SGLANG_ARGS[@]}" \
  "${MISC_ARGS[@]}" \
  "$@" |
  sed -un -e '/in brackets:/d' -e '/^evaluation\|^  /{p;d}' -e '/^first \|^warning/{p;d}' -e '0~20p'

last=$((rollouts - 1))
snapshot=iter_$(printf %07d "$last")
if [ "$lora_rank" -gt 0 ]; then
  "$build/miles" convert --hf-checkpoint "$dir/sft/latest" --lora-adapter-path "$dir/rl/$snapshot" \
    --save-hf "$dir/merged"
  ln -sfn ../merged "$dir/rl/latest"
else
  ln -sfn "$snapshot" "$dir/rl/latest"
fi
"$build/tools/quickstart_show" "$dir/rl/metrics.jsonl" "$dir/rounds/$last.jsonl.zst"
program=$build/miles
[ "$PWD" = "$here" ] && [ -x miles ] && program=./miles
cat << END

Finished in $(($(date +%s) - began)) s.  To look at the answers of the run one by one:

    $program inspect $dir/rl

To talk to the model, start a server; docs/GETTING_STARTED.md continues from here:

$program serve --model-path $dir/rl/latest
END
