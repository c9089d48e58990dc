#!/usr/bin/env bash
# gpu.sh [BUILD] - speeds on one GPU, made-up weights of the Qwen3 shapes, bf16.
#
#   BUILD/bench/bench_gpu and BUILD/miles must be there (make all build/release/bench/bench_gpu).
#   Training: forward, backward, AdamW with f32 masters, a loss at every position.  Rollouts:
#   temperature 1, log-probs, answer tokens over the whole time, prefill included.
set -u
build=${1:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$PWD/$build:${LD_LIBRARY_PATH:-}"
# shellcheck source=tests/gpu/shapes.sh
. tests/gpu/shapes.sh
shapes "$work"

rollout() { # rollout SHAPE REQUESTS IN OUT RATIO
    "$build/miles" bench engine --device cuda --load-format dummy --model-path "$work/$1" \
        --num-prompts "$2" --random-input-len "$3" --random-output-len "$4" \
        --random-range-ratio "$5" --max-running-requests "$2" --chunked-prefill-size 8192 |
        awk '/^duration/ { d = $2 } /^answer  / { t = $2 } /^until ready/ { r = $3 }
             END { printf "%.2f s, %.0f tokens/s, ready after %.1f s\n", d, t, r }'
}

row() { # row WORK GOAL COMMAND...
    printf '%s (goal %s)\n' "$1" "$2"
    shift 2
    "$@" 2>&1 | sed 's/^/    /'
}

row 'train step, 0.6B, 8 x 2048' '85,000 tokens/s' "$build/bench/bench_gpu" "$work/0.6B" 8 2048 8
row 'train step, 4B, 4 x 4096' '45 % of 989 TFLOP/s' "$build/bench/bench_gpu" "$work/4B" 4 4096 4 8192
row 'rollout, 0.6B, 256 x (100..1024 in, out)' '22,000 tokens/s' rollout 0.6B 256 1024 1024 0.1
row 'rollout, 8B, 256 x (1024 in, 1024 out)' '38 s' rollout 8B 256 1024 1024 1
row 'one stream, 0.6B' '1,000 tokens/s' rollout 0.6B 1 64 512 1
