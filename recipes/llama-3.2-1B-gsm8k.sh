#!/usr/bin/env bash
# llama-3.2-1B-gsm8k.sh [FLAGS...] - Llama-3.2-1B-Instruct on the word problems of GSM8K.
#
# Get the model and the data (train and test) first:
#
#   pip install huggingface_hub
#   hf download meta-llama/Llama-3.2-1B-Instruct --local-dir models/Llama-3.2-1B-Instruct
#   hf download openai/gsm8k --repo-type dataset --local-dir data/gsm8k
#   tools/prepare_data.py gsm8k data/gsm8k
#
# The model's licence must be accepted on its page of the Hub, and `hf auth login` run once.
# Training reads data/gsm8k/train.jsonl; evaluations read data/gsm8k/test.jsonl, which is never trained
# on.  MODEL, DATA, TEST, RUN and INPUT_KEY name others.  Further flags go last: --dry-run prints the
# memory plan.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
miles=${MILES:-$here/miles}
model=${MODEL:-models/Llama-3.2-1B-Instruct}
data=${DATA:-data/gsm8k/train.jsonl}
test=${TEST:-data/gsm8k/test.jsonl}
run=${RUN:-runs/Llama-3.2-1B-Instruct}

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
  --rm-type math
  --num-rollout 200
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 1024
  --rollout-temperature 1
  --global-batch-size 256
)
EVAL_ARGS=(
  --eval-prompt-data gsm8k_test "$test"
  --eval-interval 20
  --n-samples-per-eval-prompt 1
  --eval-top-p 0.7
)
PERF_ARGS=(
  --use-dynamic-batch-size
  --max-tokens-per-gpu 8192
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
  --sglang-max-running-requests 64
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
