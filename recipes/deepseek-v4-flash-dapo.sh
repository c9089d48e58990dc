#!/usr/bin/env bash
# deepseek-v4-flash-dapo.sh [FLAGS...] - DeepSeek-V4-Flash on the competition problems of DAPO, tested
# on AIME 2024, on 8 nodes of 8 GPUs.  The CUDA backend has no kernels for this family yet and refuses it
# at start; COMMAND=plan shows the memory and time that the layout needs.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download deepseek-ai/DeepSeek-V4-Flash --local-dir models/DeepSeek-V4-Flash
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

name=DeepSeek-V4-Flash
task=dapo
RANKS=${RANKS:-64}
LAYOUT=(
  --actor-num-nodes 8
  --actor-num-gpus-per-node 8
  --tensor-model-parallel-size 8
  --sequence-parallel
  --pipeline-model-parallel-size 4
  --decoder-first-pipeline-num-layers 10
  --decoder-last-pipeline-num-layers 11
  --context-parallel-size 1
  --expert-model-parallel-size 16
  --expert-tensor-parallel-size 1
  --rollout-num-gpus-per-engine 8
)
RESPONSE=8192
TOKENS=8192
MEMORY=0.7
ARGS=(
  --use-rollout-routing-replay
  --optimizer-cpu-offload
)

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
