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
status=0

if "$build/checkop" --device cuda add | grep '^skipped: .*GPU'; then
    exit 0
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

sanitized() { # sanitized PROGRAM...: under compute-sanitizer; without it, a line that says so
    if ! command -v compute-sanitizer > /dev/null; then
        echo "skipped: compute-sanitizer is not on this host"
        return 0
    fi
    compute-sanitizer --tool memcheck --error-exitcode 9 "$@" | tail -n 3
    return "${PIPESTATUS[0]}"
}

shapes "$work"
"$build/checkop" --device cuda-f32 || status=1
"$build/checkop" --device cuda || status=1
"$build/tests/gpu/check_draws" || status=1
"$build/tests/gpu/check_engine" "$work/0.6B" || status=1
"$build/tests/gpu/check_engine" "$work/experts" || status=1
"$here/check_models.py" --miles "$build/miles" || status=1
"$here/check_train.sh" "$build" "$work" || status=1
"$build/bench/bench_gpu" "$work/0.6B" 8 2048 2 2> /dev/null | memory_check training || status=1
"$build/miles" bench engine --device cuda --load-format dummy --model-path "$work/0.6B" \
    --num-prompts 16 --random-input-len 1024 --random-output-len 16 --max-running-requests 256 \
    --chunked-prefill-size 8192 | memory_check rollouts || status=1
MILES_DEVICE=cuda tests/e2e/train_quickstart.sh "$build" 1 || status=1
# Every op by itself; what is fused, and draws, by an engine of few layers.
sanitized "$build/checkop" --device cuda || status=1
sanitized "$build/tests/gpu/check_engine" "$work/two-layers" || status=1
sanitized "$build/tests/gpu/check_engine" "$work/one-layer" || status=1
exit $status
