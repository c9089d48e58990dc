#!/usr/bin/env bash
# kimi-k2.6-dapo.sh [FLAGS...] - the text model of Kimi-K2.6 on the competition problems of DAPO, tested
# on AIME 2024, on 32 nodes of 8 GPUs.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download moonshotai/Kimi-K2.6 --local-dir models/Kimi-K2.6
#   hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset --local-dir data/dapo
#   hf download HuggingFaceH4/aime_2024 --repo-type dataset --local-dir data/aime-2024
#   tools/prepare_data.py dapo data/dapo
#   tools/prepare_data.py aime data/aime-2024
#
# RELEASE=Kimi-K2.5 names the release before it, which has the same layout.
# Training reads DAPO-Math-17k; evaluations read AIME 2024, which is never trained on.  MODEL, DATA,
# TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes share.  Further
# flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=${RELEASE:-Kimi-K2.6}
task=dapo
RANKS=${RANKS:-256}
LAYOUT=(
  --actor-num-nodes 32
  --actor-num-gpus-per-node 8
  --tensor-model-parallel-size 8
  --sequence-parallel
  --pipeline-model-parallel-size 8
  --decoder-last-pipeline-num-layers 5
  --context-parallel-size 4
  --expert-model-parallel-size 32
  --expert-tensor-parallel-size 1
  --rollout-num-gpus-per-engine 16
)
RESPONSE=16384
TOKENS=4096
MEMORY=0.7
ARGS=(
  --use-rollout-routing-replay
  --optimizer-cpu-offload
)

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
