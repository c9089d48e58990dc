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
# TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes share.  Further
# flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=Qwen3-4B
task=dapo

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
