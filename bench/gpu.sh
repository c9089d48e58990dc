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

gpu() { # gpu NAME SHAPE ARGUMENTS: of bench_gpu
    "$build/bench/bench_gpu" "$work/$2" "${@:3}" > "$work/$1" 2>> "$work/log"
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
gpu train06 0.6B 8 2048 8
gpu train4 4B 4 4096 4 8192
gpu train32k 0.6B 1 32768 3
gpu train135 135M 32 1024 6
gpu trainmoe experts 4 2048 4
gpu trainnext recurrent 2 4096 4
gpu train8 8B-part 4 4096 4 16384
gpu lora8 8B-part 4 4096 4 16384 32
gpu lorawhole 8B 4 4096 3 4096 32
gpu lora32 32B 2 2048 2 2048 32
gpu loradecode 8B decode 64 1024 256 16 32
"$build/bench/bench_attn" head128-4k head128-16k head128-32k |
    awk '{ print $1 "_" $2, $5 }' > "$work/attention"
rollout rolloutnext recurrent-512 64 1024 256 1
rollout rollout06 0.6B 256 1024 1024 0.1
rollout rollout8 8B 256 1024 1024 1
rollout rolloutmoe 30B-A3B 256 1024 256 1
rollout stream 0.6B 1 64 512 1
peer peer_attention attention
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
row 'train step, 0.6B, 8 x 2048' "$(get train06 tokens_per_s) tokens/s" '110,000' \
    "$(peer_of torch "$(get peer_train torch_tokens_per_s)")" "$(share "$(get train06 tflops)")"
row 'train step, 4B, 4 x 4096' "$(get train4 mfu) % of 989" '56 %' '-' \
    "$(share "$(get train4 tflops)")"
row 'train step, 0.6B, 1 x 32768' "$(get train32k mfu) % of 989" '40 %' '-' \
    "$(share "$(get train32k tflops)")"
row 'train step, 135M, 32 x 1024' "$(get train135 tokens_per_s) tokens/s" '350,000' '-' \
    "$(share "$(get train135 tflops)")"
row 'train step, 6 layers of 30B-A3B, 4 x 2048' "$(get trainmoe tokens_per_s) tokens/s" '75,000' '-' \
    "$(share "$(get trainmoe tflops)")"
for length in 4k 16k 32k; do
    for way in forward backward; do
        own=$(get attention "head128-${length}_$way")
        cudnn=$(get peer_attention "cudnn_${length}_$way")
        row "attention $way, causal, heads of 128, $length" "$own TFLOP/s" \
            "$([ $way = forward ] && echo 0.90 || echo 0.70) of cuDNN" \
            "$(peer_of cuDNN "$cudnn")" "$(calc "100 * $own / $cudnn" '%.0f %% of cuDNN')"
    done
done
# 256 requests of 102..1024 tokens in and out: 509,000 keys are read per request on the average.
row 'rollout, 0.6B, 256 x (100..1024 in, out)' "$(get rollout06 tokens_per_s) tokens/s" '28,000' '-' \
    "$(of_floor "$(get rollout06 seconds)" 1.19 1024 '(256 * 509000 * 114688 / 1e9)' '(256 * 562 * 1.2e-3)')"
row 'rollout, 8B, 256 x (1024 in, 1024 out)' "$(get rollout8 seconds) s" '27 s' '-' \
    "$(of_floor "$(get rollout8 seconds)" 16.4 1024 '(256 * 1572864 * 147456 / 1e9)' '(256 * 1024 * 16.4e-3)')"
# A step reads the weights of all experts; 98 KB of keys and values a token.
row 'rollout, 30B-A3B, 256 x (1024 in, 256 out)' "$(get rolloutmoe seconds) s" '9 s' '-' \
    "$(of_floor "$(get rolloutmoe seconds)" 60.4 256 '(256 * 256 * 1152 * 98304 / 1e9)' '(256 * 1024 * 6.6e-3)')"
row 'train step, 8 layers of Qwen3-Next, 64 experts' "$(get trainnext mfu) % of 989" '30 %' '-' \
    "$(share "$(get trainnext tflops)")"
# A step of 64 sequences: 72 % of the experts (18.5 GB), other weights (1.2 GB), their states, read and
# written (1.6 GB), and 1152 keys of two layers.
row 'rollout, Qwen3-Next, 64 x (1024 in, 256 out)' "$(get rolloutnext seconds) s" '60 %' '-' \
    "$(of_floor "$(get rolloutnext seconds)" 21.3 256 '(256 * 64 * 1152 * 4096 / 1e9)' '(64 * 1024 * 1.1e-3)')"
row 'LoRA rank 32, 8 layers of 8B, 4 x 4096' \
    "$(calc "$(get lora8 tflops) / $(get train8 tflops)" '%.2f') of full" '0.80' \
    "full $(get train8 tflops) TFLOP/s" "$(share "$(get lora8 tflops)")"
row 'LoRA rank 32, 8B, 4 x 4096, memory' "$(get lorawhole peak_gib) GiB" '60 GiB' '-' \
    "$(get lorawhole tokens_per_s) tokens/s, $(get lorawhole mfu) % of 989"
row 'LoRA rank 32, 32B, 2 x 2048, memory' "$(get lora32 peak_gib) GiB" '139 GiB' '-' \
    "$(get lora32 tokens_per_s) tokens/s, $(get lora32 mfu) % of 989"
row 'decode, 8B, 64 streams, 16 adapters' "$(get loradecode ratio) of base" '0.85' \
    "base $(get loradecode base_tokens_per_s)" "$(get loradecode adapter_tokens_per_s) tokens/s"
row 'publication of an adapter, 8B, a copy' "$(get lorawhole publish_copy_ms) ms" '5 ms' '-' ''
row 'one stream, 0.6B' "$(get stream tokens_per_s) tokens/s" '1,300' \
    "$(peer_of transformers "$(get peer_stream transformers_tokens_per_s)")" \
    "$(of_floor "$(get stream seconds)" 1.19 512 '(320 * 512 * 114688 / 1e9)' 0)"
row 'publication, 0.6B, weights shared' "$(get train06 publish_ms) ms" '5 ms' '-' \
    "into a copy $(get train06 publish_copy_ms) ms"
row 'start to the first optimizer step, 0.6B' "$(get train06 first_step_s) s" '10 s' '-' ''
row 'memory of training, 0.6B, against the plan' "$(get train06 peak_gib) GiB" '3 %' '-' \
    "$(memory train06) of $(get train06 planned_gib) planned"
row 'memory of rollout, 0.6B, against the plan' "$(get rollout06 peak_gib) GiB" '3 %' '-' \
    "$(memory rollout06) of $(get rollout06 planned_gib) planned"
