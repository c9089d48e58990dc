#!/usr/bin/env bash
# run.sh BUILD - everything that is checked on a GPU; skipped with a line where there is none.
set -u
build=${1:-build/release}
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$PWD/$build:${LD_LIBRARY_PATH:-}"
# shellcheck source=tests/gpu/shapes.sh
. "$here/shapes.sh"
passed=0 failed=0 skipped=0

if "$build/checkop" --device cuda add | grep '^skipped: .*GPU'; then
    exit 0 # the line counts as one skipped test
fi

# What lines "NAME planned", "NAME most used" of standard input say, within 3 %.
memory_check() { # memory_check WHAT
    awk -v what="$1" '/planned/ { planned = $(NF == 2 ? 2 : 3) }
        /^peak/ { peak = $(NF == 2 ? 2 : 3) }
        END {
            off = planned ? 100 * (peak / planned - 1) : 100
            printf "memory of %s: %.3f GiB peak, %.3f GiB planned, %+.2f %%\n", what, peak,
                planned, off
            exit off > 3 || off < -3
        }'
}

training_memory() {
    "$build/bench/bench_gpu" "$work/0.6B" 8 2048 2 2> /dev/null | memory_check training
}

rollout_memory() {
    "$build/miles" bench engine --device cuda --load-format dummy --model-path "$work/0.6B" \
        --num-prompts 16 --random-input-len 1024 --random-output-len 16 --max-running-requests 256 \
        --chunked-prefill-size 8192 | memory_check rollouts
}

quickstart() {
    MILES_DEVICE=cuda tests/e2e/train_quickstart.sh "$build" 1
}

ranks() { # ranks N PROGRAM...
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 \
        mpirun --oversubscribe --allow-run-as-root -n "$@"
}

check() { # check COMMAND...: counts it
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "FAIL $*"
        failed=$((failed + 1))
    fi
}

sanitized() { # sanitized PROGRAM...: the same under compute-sanitizer
    if command -v compute-sanitizer > /dev/null; then
        check compute-sanitizer --tool memcheck --error-exitcode 9 "$@"
    else
        echo "skipped: $*: compute-sanitizer is missing (it comes with the CUDA toolkit)"
        skipped=$((skipped + 1))
    fi
}

shapes "$work"
check "$build/checkop" --device cuda-f32
check "$build/checkop" --device cuda
check "$build/tests/gpu/check_draws"
check "$build/tests/gpu/check_encode"
check "$build/tests/gpu/check_fused" "$work/two-layers"
check "$build/tests/gpu/check_fused_fp8"
check "$build/tests/gpu/check_engine" "$work/0.6B"
check "$build/tests/gpu/check_engine" "$work/window"
check "$build/tests/gpu/check_engine" "$work/window-64"
check "$build/tests/gpu/check_engine" "$work/experts"
check "$build/tests/gpu/check_engine" "$work/four-recurrent"
check "$build/tests/gpu/check_engine" "$work/two-layers" 16 32
check "$build/tests/gpu/check_engine" "$work/two-layers" 3 64
check "$build/tests/gpu/check_engine" "$work/two-layers" 1 5
check "$build/tests/gpu/check_engine" "$work/one-layer" 5 16
for dtype in int4 int4-g128 fp8 int8 nf4 fp8-blockwise mxfp8; do
    check "$build/tests/gpu/check_engine" "$work/two-layers" quantized $dtype
    check "$build/tests/gpu/check_engine" tests/golden/data/qwen3_moe quantized $dtype
done
for dtype in fp8_e4m3 fp8_e5m2 int8; do
    check "$build/tests/gpu/check_engine" "$work/two-layers" kv $dtype
    check "$build/tests/gpu/check_engine" "$work/four-recurrent" kv $dtype
done
# Every family, as tiny models, with their multi-token prediction layers; with adapters, too.
for family in tests/golden/data/*/ tests/golden/mtp/*/; do
    check "$build/tests/gpu/check_engine" "$family"
    check "$build/tests/gpu/check_engine" "$family" 3 4
    check "$build/tests/gpu/check_engine" "$family" kv fp8_e4m3
done
for family in tests/golden/data/*/; do
    check "$build/tests/gpu/check_engine" "$family" quantized fp8-blockwise
    check "$build/tests/gpu/check_engine" "$family" quantized int4
done
for family in llama qwen2 qwen3 qwen3_moe mixtral gemma2 gemma3_text gpt_oss glm4_moe olmo2 deepseek_v3; do
    check "$build/tests/gpu/check_prefix" "tests/golden/data/$family"
done
check "$build/tests/gpu/check_engine" tests/golden/eagle3/target eagle3 tests/golden/eagle3/own
check tests/e2e/train_mtp.py --build "$build" --device cuda
check tests/e2e/train_mtp.py --build "$build" --device cuda --head
check "$here/check_models.py" --miles "$build/miles"
check "$here/check_train.sh" "$build" "$work"
# Ranks share the GPU.
for n in 2 3 4; do
    check ranks $n "$build/tests/unit/test_comm_device"
done
check "$here/check_ranks.sh" "$build" "$work"
check training_memory
check rollout_memory
check quickstart
# Every op by itself; what is fused, and draws, by an engine of few layers.
sanitized "$build/checkop" --device cuda
sanitized "$build/tests/gpu/check_engine" "$work/two-layers"
sanitized "$build/tests/gpu/check_engine" "$work/one-layer"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
