#!/usr/bin/env bash
# make_jobs.sh - a build has as many jobs as there are cores, unless -j says otherwise.
set -u
unset MAKEFLAGS MAKELEVEL MFLAGS
failed=0

# expect FLAG ARGS...: `make ARGS` runs with this -j, or with none
expect() {
    local want=$1 flags
    shift
    flags=$(make -npq JOBS=7 "$@" 2>/dev/null | grep -a '^MAKEFLAGS = ')
    case " $flags " in
    *" ${want:-no} "*) return ;;
    *' -j'*) ;;
    *) [ -z "$want" ] && return ;;
    esac
    echo "make $*: expected '$want' in '$flags'"
    failed=1
}

expect -j7
expect -j7 all
expect -j7 programs build/release/miles
expect -j3 -j3 all
expect '' test
exit $failed
