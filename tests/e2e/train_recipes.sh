#!/usr/bin/env bash
# train_recipes.sh BUILD - every recipe's flags are understood, and evaluations read the test split:
# dry runs with a small model of the recipe's family, then one without a test file, which must be refused.
# A recipe for several GPUs is planned for one process; the sizes and flags of its layout are checked.
set -eu

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/tools/quickstart_make" "$dir" 1

# family RECIPE: REPLY is the folder of a model of the recipe's family; empty: the small model.
family() {
  case $1 in
  *kimi-k2.6*) REPLY=tests/golden/wrappers/kimi_k25 ;;
  *glm-5.1*) REPLY=tests/golden/data/glm_moe_dsa ;;
  *qwen3.6*) REPLY=tests/golden/wrappers/qwen3_5_moe ;;
  *qwen3.5*) REPLY=tests/golden/wrappers/qwen3_5 ;;
  *deepseek-v4*) REPLY=tests/golden/data/deepseek_v4 ;;
  *) REPLY= ;;
  esac
}

# planned RECIPE: REPLY is a config of about the recipe's size in share/configs, with the flags that fit its
# number of layers; empty: there is none.
planned() {
  case $1 in
  *kimi-k2.6*) REPLY='DeepSeek-V3' ;;
  *glm-5.1*) REPLY='DeepSeek-V3 --decoder-last-pipeline-num-layers 5' ;;
  *qwen3.6*) REPLY='Qwen3-30B-A3B' ;;
  *deepseek-v4*) REPLY='DeepSeek-V4-Flash' ;;
  *) REPLY= ;;
  esac
}

# size FLAG: REPLY is its value in the recipe's layout, 1 by default.
size() {
  REPLY=$(sed -n "s/^  --$1 //p" "$recipe")
  REPLY=${REPLY:-1}
}

# The sizes of a layout fit the number of ranks, as Megatron wants it.
check_layout() {
  local ranks product=1 nodes flag
  ranks=$(sed -n 's/^RANKS=.*:-\(.*\)}$/\1/p' "$recipe")
  size actor-num-nodes && nodes=$REPLY
  size actor-num-gpus-per-node && [ "$ranks" = $((nodes * REPLY)) ] || return 1
  for flag in tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size; do
    size $flag && product=$((product * REPLY))
  done
  [ $((ranks % product)) = 0 ] || return 1
  size pipeline-model-parallel-size && product=$REPLY
  size expert-model-parallel-size && product=$((product * REPLY))
  [ $((ranks % product)) = 0 ] || return 1
  size rollout-num-gpus-per-engine && [ $((ranks % REPLY)) = 0 ]
}

for recipe in recipes/*.sh; do
  case $recipe in */quickstart.sh | */common.sh) continue ;; esac
  echo "$recipe"
  export MILES=$build/miles MODEL=$dir/model DATA=$dir/prompts.jsonl RUN=$dir/run INPUT_KEY=messages
  family "$recipe"
  if [ -n "$REPLY" ] && [ -d "$REPLY" ]; then # the weights of the family, the text of the small model
    rm -rf "$dir/family"
    cp -r "$dir/model" "$dir/family"
    cp "$REPLY/config.json" "$REPLY/model.safetensors" "$dir/family/"
    export MODEL=$dir/family
  fi
  RANKS=1 TEST=$dir/unseen.jsonl "$recipe" --dry-run
  if RANKS=1 TEST=$dir/missing.jsonl "$recipe" --dry-run 2> "$dir/refused"; then
    echo "$recipe runs without a test file"
    exit 1
  fi
  grep -q 'missing.jsonl' "$dir/refused"
  grep -q '^LAYOUT=' "$recipe" || continue
  check_layout || { echo "$recipe: the sizes of its layout do not fit its ranks"; exit 1; }
  # The small model may have too few layers or experts for it, but all its flags are known.
  if ! TEST=$dir/unseen.jsonl "$recipe" --dry-run > "$dir/planned" 2> "$dir/refused" &&
    grep -q 'unknown flag' "$dir/refused"; then
    cat "$dir/refused"
    exit 1
  fi
  planned "$recipe"
  [ -n "$REPLY" ] || continue
  # shellcheck disable=SC2086 # flags after the name
  set -- $REPLY
  TEST=$dir/unseen.jsonl COMMAND=plan MODEL=share/configs/$1 "$recipe" "${@:2}" > "$dir/plan"
  grep 'total .* of ' "$dir/plan"
  if grep -q 'does not fit' "$dir/plan"; then
    cat "$dir/plan"
    exit 1
  fi
done
