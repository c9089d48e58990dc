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
shapes "$work"
"$build/checkop" --device cuda-f32 || status=1
"$build/checkop" --device cuda || status=1
"$build/tests/gpu/check_draws" || status=1
"$build/tests/gpu/check_engine" "$work/0.6B" || status=1
"$build/tests/gpu/check_engine" "$work/experts" || status=1
"$here/check_models.py" --miles "$build/miles" || status=1
exit $status
