#!/usr/bin/env bash
# run-tests.sh - runs the commands on standard input and adds up what they report.
#
# A line is a time limit in seconds, a name and a command:
#
#     60   layers          tools/check-layers.sh
#     !900 build           make programs
#
# `!` marks a command without which the rest makes no sense.  A command whose output ends in
# "N passed, N failed" counts as that many tests, any other as one; a crash, a time-out or an
# unexplained exit status is a failure.  Output is shown for failures only.  The last line is
# the sum; the exit status is 0 when nothing failed.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

while read -r limit name command; do
    [ -n "$limit" ] || continue
    must=${limit%%[0-9]*}
    limit=${limit#!}
    begin=$SECONDS
    timeout --kill-after=10 "$limit" bash -c "$command" >"$log" 2>&1 </dev/null
    status=$?

    p=0 f=0
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
        [ $status -ne 0 ] && [ "$f" -eq 0 ] && f=1
    elif [ $status -eq 0 ]; then
        p=1
    else
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f))

    if [ "$f" -eq 0 ]; then
        # What was skipped, and why, is worth a line even when all is well.
        printf 'ok    %4ds  %-28s %5d passed\n' $((SECONDS - begin)) "$name" "$p"
        grep '^skipped:' "$log" | sed 's/^/              /'
        continue
    fi
    [ $status -eq 124 ] && echo "time limit of $limit s exceeded" >>"$log"
    printf 'FAIL  %4ds  %-28s %5d passed, %d failed: %s\n' $((SECONDS - begin)) "$name" "$p" "$f" \
        "$command"
    grep -v '^ok  ' "$log" | tail -n 80 | sed 's/^/      | /'
    [ -n "$must" ] && break
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
