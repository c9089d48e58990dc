#!/usr/bin/env bash
# qwen3.6-35B-A3B-dapo.sh [FLAGS...] - the text model of Qwen3.6-35B-A3B on the competition problems of DAPO,
# tested on AIME 2024, on one node of 8 GPUs.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download Qwen/Qwen3.6-35B-A3B --local-dir models/Qwen3.6-35B-A3B
#   hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset --local-dir data/dapo
#   hf download HuggingFaceH4/aime_2024 --repo-type dataset --local-dir data/aime-2024
#   tools/prepare_data.py dapo data/dapo
#   tools/prepare_data.py aime data/aime-2024
#
# RELEASE=Qwen3.5-35B-A3B names the release before it, which has the same layout.
# Training reads DAPO-Math-17k; evaluations read AIME 2024, which is never trained on.  MODEL, DATA,
# TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes share.  Further
# flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=${RELEASE:-Qwen3.6-35B-A3B}
task=dapo
RANKS=${RANKS:-8}
LAYOUT=(
  --actor-num-nodes 1
  --actor-num-gpus-per-node 8
  --tensor-model-parallel-size 2
  --sequence-parallel
  --pipeline-model-parallel-size 1
  --context-parallel-size 2
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --rollout-num-gpus-per-engine 8
)
RESPONSE=16384
TOKENS=16384
MEMORY=0.7
ARGS=(
  --use-rollout-routing-replay
  --optimizer-cpu-offload
)

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
