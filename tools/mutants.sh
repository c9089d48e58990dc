#!/usr/bin/env bash
# mutants.sh - plants each fault of tests/mutants/ in a copy of the source and wants a test to find
# it: test_engine_parity, or for faults of ranks (ranks-*.patch) test_ranks, of experts on ranks
# (ep-*.patch) test_ep, of pipelines (pp-*.patch)
# test_meshes, of adapters on ranks (lora-*.patch) test_lora_ranks.
#
# A fault is a patch whose first line says what goes wrong.  A patch that does not apply any
# more is a failure: the code it stands in has changed, so should the patch.
set -u
cd "$(dirname "$0")/.." || exit 2

parity=tests/parity/test_engine_parity
ranks=tests/ranks/test_ranks
experts=tests/ranks/test_ep
meshes=tests/ranks/test_meshes
adapters=tests/ranks/test_lora_ranks
copy=build/mutants
mkdir -p "$copy"
# Only what differs is copied, so that little is compiled again.
find Makefile mk src tests tools include share -type f | while read -r file; do
    cmp -s "$file" "$copy/$file" || cp -p --parents "$file" "$copy/"
done
# Objects of the release build are copied, too.
if [ -e build/release/libmiles.a ] && [ ! -e "$copy/build" ]; then
    mkdir -p "$copy/build/release"
    cp -rp build/release/{src,flags,deps.ok,libmiles.a} "$copy/build/release/"
fi
cd "$copy" || exit 2

build() { make --no-print-directory CONFIG=release "build/release/$test" >build.log 2>&1; }
run() { # until a test turns red
    local only=() long=()
    # Dense, and experts whose routers tie; engines of several ranks; speculative decoding:
    # all mixes, since some faults need a preempted request in a certain state.
    if [ "$test" = "$parity" ]; then
        only=('f32 qwen3' 'qwen3: engines' 'qwen3: speculative')
        long=(MILES_LONG=1)
    fi
    case ${name:-} in
    adapter-*) only=('qwen3: requests for adapters') long=() ;;
    esac
    timeout 900 env MILES_FIRST_FAILURE=1 "${long[@]}" "build/release/$test" "${only[@]}" >run.log 2>&1
}
for test in $parity $ranks $experts $meshes $adapters; do
    if ! build || ! run; then
        echo "without a fault $test does not pass:"
        tail -n 20 build.log run.log
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
done

passed=0 failed=0
for fault in tests/mutants/*.patch; do
    name=$(basename "$fault" .patch)
    case $name in
    ranks-*) test=$ranks ;;
    ep-*) test=$experts ;;
    pp-*) test=$meshes ;;
    lora-*) test=$adapters ;;
    *) test=$parity ;;
    esac
    if ! patch -p1 -s --no-backup-if-mismatch <"$fault" >patch.log 2>&1; then
        why="does not apply: $(tail -n 1 patch.log)"
    elif ! build; then
        why="does not compile: $(grep -m 1 error build.log)"
    elif run; then
        why="was not found: $(head -n 1 "$fault")"
    else
        why=
    fi
    patch -p1 -s -R --no-backup-if-mismatch <"$fault" >/dev/null 2>&1
    if [ -z "$why" ]; then
        echo "ok    $name: $(grep -m 1 '^FAIL' run.log || tail -n 1 run.log)"
        passed=$((passed + 1))
    else
        echo "FAIL  $name $why"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
