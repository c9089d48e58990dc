#!/usr/bin/env bash
# train_recipes.sh BUILD - every recipe's flags are understood, and evaluations read the test split:
# dry runs with a small model of the recipe's family, then one without a test file, which must be refused.
# A recipe for several GPUs runs with one process first, then in its own layout; what that still lacks is
# in the table below, which may only shrink.
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

# lacks RECIPE: REPLY is what the refusal of its layout says; empty: nothing is refused.
lacks() {
  case $1 in
  *kimi-k2.6* | *glm-5.1* | *qwen3.6* | *deepseek-v4*) REPLY='parallel-size' ;;
  *) REPLY= ;;
  esac
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
  lacks "$recipe"
  if TEST=$dir/unseen.jsonl "$recipe" --dry-run > "$dir/planned" 2> "$dir/refused"; then
    [ -z "$REPLY" ] || { echo "$recipe runs in its layout: remove its line from lacks"; exit 1; }
  elif [ -z "$REPLY" ] || ! grep -q -e "$REPLY" "$dir/refused"; then
    cat "$dir/refused"
    exit 1
  fi
done
