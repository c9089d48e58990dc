#!/usr/bin/env bash
# compare-runs.sh "COMMAND A" "COMMAND B" - do two builds of miles write the same bytes?
#
# Scores every model of tests/golden/data with both, gradients included, and compares the
# files.  Used to hold an emulated arm64 build against the native one.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

for model in tests/golden/data/*/; do
    for dtype in f32 bf16; do
        args=(score --hf-checkpoint "$model" --input "$model/golden.safetensors"
            --logits --entropy --grads --threads 1 --dtype "$dtype")
        # shellcheck disable=SC2086 # a command may have words
        if $1 "${args[@]}" --output "$dir/a" && $2 "${args[@]}" --output "$dir/b" &&
            cmp "$dir/a" "$dir/b"; then
            passed=$((passed + 1))
        else
            echo "FAIL $model $dtype"
            failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
