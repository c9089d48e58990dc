#!/usr/bin/env bash
# check-forbidden.sh - what must not be in the tree.  (Patterns carry a bracket so that this
# file does not find itself.)
set -u
cd "$(dirname "$0")/.." || exit 2
bad=0

refuse() { # refuse REASON PATTERN PATH...
    local reason=$1 pattern=$2 found
    shift 2
    found=$(grep -rnIE "$pattern" --exclude-dir=build "$@" 2>/dev/null)
    [ -z "$found" ] && return
    printf '%s:\n%s\n' "$reason" "$found"
    bad=1
}

code='Makefile mk src include tests bench tools examples .ci'
prose='README.md CONTRIBUTING.md SECURITY.md docs'

# shellcheck disable=SC2086
{
    refuse "the compiler must not change numerics" \
        '[-](ffast-math|Ofast|march=native|mtune=native|funsafe-math|fassociative-math|-use_fast_math)' $code
    refuse "paths of one machine do not belong here" \
        '(^|[^A-Za-z0-9_.$}~])/(roo[t]|wor[k]|hom[e]|User[s])/' $code $prose
    refuse "what is not done is said in the docs, not promised in a comment" \
        '\b(TOD[O]|FIXM[E]|XX[X])\b' $code
    refuse "feature macros are 0 or 1: use #if" '^ *# *ifn?def +ML_(CUDA|MPI|NCCL|ARCH_)' src
    refuse "libraries do not print" '\b(f?printf|f?puts|putchar|perror)\(' \
        src/tensor src/backend src/comm src/io src/model src/engine src/gen src/train src/rl src/run
    refuse "the field has a word for it: docs/GLOSSARY.md" \
        "\\b(nobody'[s]|under wa[y]|ane[w]|as many as ma[y]|stands? in the wa[y]|tells? the new[s])\\b" \
        --exclude=GLOSSARY.md $code $prose
}
built=$(git ls-files -- '*.so' '*.o' '*.a' '*.pyc' '*.whl' 2>/dev/null)
if [ -n "$built" ]; then
    printf 'build products do not belong in the repository; remove them and extend .gitignore:\n%s\n' "$built"
    bad=1
fi
exit $bad
