#!/usr/bin/env bash
# qwen3-4B-dapo.sh [FLAGS...] - Qwen3-4B on the competition problems of DAPO, tested on AIME 2024.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download Qwen/Qwen3-4B --local-dir models/Qwen3-4B
#   hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset --local-dir data/dapo
#   hf download HuggingFaceH4/aime_2024 --repo-type dataset --local-dir data/aime-2024
#   tools/prepare_data.py dapo data/dapo
#   tools/prepare_data.py aime data/aime-2024
#
# Training reads DAPO-Math-17k; evaluations read AIME 2024, which is never trained on.  MODEL, DATA,
# TEST, RUN and INPUT_KEY name others.  Further flags go last: --dry-run prints the memory plan.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
miles=${MILES:-$here/miles}
model=${MODEL:-models/Qwen3-4B}
data=${DATA:-data/dapo/train.jsonl}
test=${TEST:-data/aime-2024/test.jsonl}
run=${RUN:-runs/Qwen3-4B}

CKPT_ARGS=(
  --hf-checkpoint "$model"
  --ref-load "$model"
  --load "$run"
  --save "$run"
  --save-interval 20
  --keep-last 3
)
ROLLOUT_ARGS=(
  --prompt-data "$data"
  --input-key "${INPUT_KEY:-messages}"
  --label-key label
  --apply-chat-template
  --rollout-shuffle
  --rm-type dapo
  --num-rollout 1000
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 8192
  --rollout-temperature 1
  --global-batch-size 256
)
EVAL_ARGS=(
  --eval-prompt-data aime2024 "$test"
  --eval-interval 20
  --n-samples-per-eval-prompt 16 # of 30 problems
  --eval-top-p 0.7
)
PERF_ARGS=(
  --use-dynamic-batch-size
  --max-tokens-per-gpu 9216
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
)
GRPO_ARGS=(
  --advantage-estimator grpo
  --use-kl-loss
  --kl-loss-coef 0.001
  --kl-loss-type low_var_kl
  --entropy-coef 0
  --eps-clip 0.2
  --eps-clip-high 0.28
)
OPTIMIZER_ARGS=(
  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.98
)
SGLANG_ARGS=(
  --sglang-mem-fraction-static 0.3
  --sglang-max-running-requests 128
)
MISC_ARGS=(
  --colocate
  --dtype bf16
)

exec "$miles" train \
  "${CKPT_ARGS[@]}" \
  "${ROLLOUT_ARGS[@]}" \
  "${EVAL_ARGS[@]}" \
  "${PERF_ARGS[@]}" \
  "${GRPO_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" \
  "${SGLANG_ARGS[@]}" \
  "${MISC_ARGS[@]}" \
  "$@"
