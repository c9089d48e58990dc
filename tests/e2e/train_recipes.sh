#!/usr/bin/env bash
# train_recipes.sh BUILD - every recipe's flags are understood: dry runs with a small model.
set -eu

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/tools/quickstart_make" "$dir" 1

for recipe in recipes/*.sh; do
  [ "$recipe" = recipes/quickstart.sh ] && continue
  echo "$recipe"
  MILES=$build/miles MODEL=$dir/model DATA=$dir/prompts.jsonl RUN=$dir/run INPUT_KEY=messages \
    "$recipe" --dry-run
done
