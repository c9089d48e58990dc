#!/usr/bin/env bash
# qwen3-0.6B-gsm8k.sh [FLAGS...] - Qwen3-0.6B on the word problems of GSM8K.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B
#   hf download openai/gsm8k --repo-type dataset --local-dir data/gsm8k
#   tools/prepare_data.py gsm8k data/gsm8k
#
# Training reads data/gsm8k/train.jsonl; evaluations read data/gsm8k/test.jsonl, which is never trained
# on.  MODEL, DATA, TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes
# share.  Further flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=Qwen3-0.6B
task=gsm8k
ARGS=(
  --apply-chat-template-kwargs '{"enable_thinking": false}' # short answers
)

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
