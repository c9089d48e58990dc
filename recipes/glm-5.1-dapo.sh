#!/usr/bin/env bash
# glm-5.1-dapo.sh [FLAGS...] - GLM-5.1 on the competition problems of DAPO, tested on AIME 2024, on 32
# nodes of 8 GPUs.
#
# Get the model and the data first:
#
#   pip install huggingface_hub
#   hf download zai-org/GLM-5.1 --local-dir models/GLM-5.1
#   hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset --local-dir data/dapo
#   hf download HuggingFaceH4/aime_2024 --repo-type dataset --local-dir data/aime-2024
#   tools/prepare_data.py dapo data/dapo
#   tools/prepare_data.py aime data/aime-2024
#
# RELEASE=GLM-5 names the release before it, which has the same layout.
# Training reads DAPO-Math-17k; evaluations read AIME 2024, which is never trained on.  MODEL, DATA,
# TEST, RUN and INPUT_KEY name others; recipes/common.sh has the flags that all recipes share.  Further
# flags go last: --dry-run prints the memory plan.
# shellcheck disable=SC2034
set -eu

name=${RELEASE:-GLM-5.1}
task=dapo
RANKS=${RANKS:-256}
LAYOUT=(
  --actor-num-nodes 32
  --actor-num-gpus-per-node 8
  --tensor-model-parallel-size 4
  --sequence-parallel
  --pipeline-model-parallel-size 8
  --decoder-last-pipeline-num-layers 8
  --context-parallel-size 2
  --expert-model-parallel-size 32
  --expert-tensor-parallel-size 1
  --rollout-num-gpus-per-engine 16
)
RESPONSE=16384
TOKENS=8192
MEMORY=0.7
ARGS=(
  --use-rollout-routing-replay
  --optimizer-cpu-offload
  --use-rollout-indexer-replay
)

# shellcheck source=recipes/common.sh
. "$(dirname "$0")/common.sh"
