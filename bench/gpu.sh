#!/usr/bin/env bash
# gpu.sh [BUILD] - one table of what the GPU backend does, made-up weights of the Qwen3 shapes, bf16.
#
#   BUILD/bench/bench_gpu, BUILD/bench/bench_roof and BUILD/miles must be there (make gpu-bench makes
#   them).  Each figure, its goal, a peer measured in the same run where PyTorch is on the host
#   (MILES_BENCH_PEERS=0 leaves it out), and its share of what the card does at best: a large product
#   for training, bytes that a copy moves for rollouts, both measured first.  Training: forward,
#   backward, AdamW with f32 masters, a loss at every position.  Rollouts: temperature 1, log-probs,
#   answer tokens over the whole time, prefill included.
set -u
build=${1:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$PWD/$build:${LD_LIBRARY_PATH:-}"
# shellcheck source=tests/gpu/shapes.sh
. tests/gpu/shapes.sh
shapes "$work"

# ---- measuring: each writes lines of a name and a number to a file ----

rollout() { # rollout NAME SHAPE REQUESTS IN OUT RATIO
    "$build/miles" bench engine --device cuda --load-format dummy --model-path "$work/$2" \
        --num-prompts "$3" --random-input-len "$4" --random-output-len "$5" \
        --random-range-ratio "$6" --max-running-requests "$3" --chunked-prefill-size 8192 |
        awk '/^duration/ { print "seconds", $2 } /^response  / { print "tokens_per_s", $2 }
             /^planned memory/ { print "planned_gib", $3 } /^peak memory/ { print "peak_gib", $3 }' \
            > "$work/$1"
}

peer() { # peer NAME WORK: with a limit, since compiling may take long
    if [ "${MILES_BENCH_PEERS:-1}" = 0 ] || ! python3 -c 'import torch, transformers' 2> /dev/null; then
        echo "skipped: PyTorch's $2 is not measured; it needs torch and transformers for python3"
    else
        timeout 90 python3 bench/bench_torch_gpu.py "$work/0.6B" "$2" > "$work/$1" 2> "$work/$1.err" ||
            echo "skipped: PyTorch's $2 did not end well: $(tail -n 1 "$work/$1.err")"
    fi
}

: > "$work/none"
"$build/bench/bench_roof" > "$work/roof" || exit 1
"$build/bench/bench_gpu" "$work/0.6B" 8 2048 8 > "$work/train06" 2> "$work/log"
"$build/bench/bench_gpu" "$work/4B" 4 4096 4 8192 > "$work/train4" 2>> "$work/log"
"$build/bench/bench_gpu" "$work/recurrent" 2 4096 4 > "$work/trainnext" 2>> "$work/log"
rollout rolloutnext recurrent-512 64 1024 256 1
rollout rollout06 0.6B 256 1024 1024 0.1
rollout rollout8 8B 256 1024 1024 1
rollout stream 0.6B 1 64 512 1
peer peer_train train
peer peer_stream stream

# ---- the table ----

get() { # get FILE NAME: the number, or nothing
    [ -e "$work/$1" ] && awk -v name="$2" '$1 == name { print $2 }' "$work/$1"
}

calc() { # calc EXPRESSION FORMAT: nothing when a number is missing
    awk "BEGIN { printf \"$2\", $1 }" 2> /dev/null
}

row() { printf '%-44s %16s %16s %22s %s\n' "$@"; }

copy=$(get roof copy_tb_s)
gemm=$(get roof gemm_tflops)

share() { # share TFLOPS: of the product
    calc "100 * $1 / $gemm" '%.0f %% of the product'
}

# The least time of rollouts: weights once a step, keys and values of all tokens before, by the copy's
# speed, and the products of prompts.  of_floor SECONDS WEIGHT_GB STEPS KEY_GB PROMPT_TFLOP
of_floor() {
    calc "100 * (($2 * $3 + $4) / 1e3 / $copy + $5 / $gemm) / $1" '%.0f %% of the floor'
}

peer_of() { # peer_of LIBRARY NUMBER
    [ -n "$2" ] && echo "$1 $2" || echo -
}

memory() { # memory FILE
    calc "100 * ($(get "$1" peak_gib) / $(get "$1" planned_gib) - 1)" '%+.1f %%'
}

printf 'a copy moves %s TB/s, a product of 8192 x 8192 x 8192 does %s TFLOP/s\n\n' "$copy" "$gemm"
row 'work' 'measured' 'goal' 'peer' 'share'
row 'train step, 0.6B, 8 x 2048' "$(get train06 tokens_per_s) tokens/s" '85,000' \
    "$(peer_of torch "$(get peer_train torch_tokens_per_s)")" "$(share "$(get train06 tflops)")"
row 'train step, 4B, 4 x 4096' "$(get train4 mfu) % of 989" '45 %' '-' \
    "$(share "$(get train4 tflops)")"
# 256 requests of 102..1024 tokens in and out: 509,000 keys are read per request on the average.
row 'rollout, 0.6B, 256 x (100..1024 in, out)' "$(get rollout06 tokens_per_s) tokens/s" '22,000' '-' \
    "$(of_floor "$(get rollout06 seconds)" 1.19 1024 '(256 * 509000 * 114688 / 1e9)' '(256 * 562 * 1.2e-3)')"
row 'rollout, 8B, 256 x (1024 in, 1024 out)' "$(get rollout8 seconds) s" '38 s' '-' \
    "$(of_floor "$(get rollout8 seconds)" 16.4 1024 '(256 * 1572864 * 147456 / 1e9)' '(256 * 1024 * 16.4e-3)')"
row 'train step, 8 layers of Qwen3-Next, 64 experts' "$(get trainnext mfu) % of 989" '30 %' '-' \
    "$(share "$(get trainnext tflops)")"
# A step of 64 sequences: 72 % of the experts (18.5 GB), other weights (1.2 GB), their states, read and
# written (1.6 GB), and 1152 keys of two layers.
row 'rollout, Qwen3-Next, 64 x (1024 in, 256 out)' "$(get rolloutnext seconds) s" '60 %' '-' \
    "$(of_floor "$(get rolloutnext seconds)" 21.3 256 '(256 * 64 * 1152 * 4096 / 1e9)' '(64 * 1024 * 1.1e-3)')"
row 'one stream, 0.6B' "$(get stream tokens_per_s) tokens/s" '1,000' \
    "$(peer_of transformers "$(get peer_stream transformers_tokens_per_s)")" \
    "$(of_floor "$(get stream seconds)" 1.19 512 '(320 * 512 * 114688 / 1e9)' 0)"
row 'publication, 0.6B, weights shared' "$(get train06 publish_ms) ms" '5 ms' '-' \
    "into a copy $(get train06 publish_copy_ms) ms"
row 'start to the first optimizer step, 0.6B' "$(get train06 first_step_s) s" '10 s' '-' ''
row 'memory of training, 0.6B, against the plan' "$(get train06 peak_gib) GiB" '3 %' '-' \
    "$(memory train06) of $(get train06 planned_gib) planned"
row 'memory of rollout, 0.6B, against the plan' "$(get rollout06 peak_gib) GiB" '3 %' '-' \
    "$(memory rollout06) of $(get rollout06 planned_gib) planned"
