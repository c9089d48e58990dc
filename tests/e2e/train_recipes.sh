#!/usr/bin/env bash
# train_recipes.sh BUILD - every recipe's flags are understood, and evaluations read the test split:
# dry runs with a small model, then one without a test file, which must be refused.
set -eu

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/tools/quickstart_make" "$dir" 1

for recipe in recipes/*.sh; do
  [ "$recipe" = recipes/quickstart.sh ] && continue
  echo "$recipe"
  export MILES=$build/miles MODEL=$dir/model DATA=$dir/prompts.jsonl RUN=$dir/run INPUT_KEY=messages
  TEST=$dir/unseen.jsonl "$recipe" --dry-run
  if TEST=$dir/missing.jsonl "$recipe" --dry-run 2> "$dir/refused"; then
    echo "$recipe runs without a test file"
    exit 1
  fi
  grep -q 'missing.jsonl' "$dir/refused"
done
