#!/usr/bin/env bash
# llama-3.2-1B-gsm8k.sh [FLAGS...] - Llama-3.2-1B-Instruct on the word problems of GSM8K.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download meta-llama/Llama-3.2-1B-Instruct --local-dir models/Llama-3.2-1B-Instruct
#   hf download openai/gsm8k --repo-type dataset --local-dir data/gsm8k
#   tools/prepare_data.py gsm8k data/gsm8k
#
# The model's licence must be accepted on its page of the Hub, and `hf auth login` run once.
# Training reads data/gsm8k/train.jsonl; evaluations read data/gsm8k/test.jsonl, which is never trained
# on.  MODEL, DATA, TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes
# share.  Further flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=Llama-3.2-1B-Instruct
task=gsm8k

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
