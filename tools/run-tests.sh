#!/usr/bin/env bash
# run-tests.sh - runs the commands on standard input and adds up what they report.
#
# A line is a time limit in seconds, a name and a command:
#
#     60    layers         tools/check-layers.sh
#     !900  build          make programs
#     &2400 load           build/release/tests/load/load_serve --seconds 1800
#
# `!` marks a command without which the rest makes no sense, `&` one that runs beside those
# that follow and is waited for at the end.  A command whose output ends in "N passed, N failed"
# counts as that many tests, any other as one; a crash, a time-out or an unexplained exit status
# is a failure.  Output is shown for failures only.  The last line is the sum; the exit status
# is 0 when nothing failed.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL

logs=$(mktemp -d)
beside=() # pids of the commands that run beside the others; their lines are in $logs
trap 'kill "${beside[@]}" 2>/dev/null; rm -rf "$logs"' EXIT
passed=0 failed=0

judge() { # judge STATUS SECONDS LIMIT NAME COMMAND LOG: adds up and tells; false for a failure
    local status=$1 seconds=$2 limit=$3 name=$4 command=$5 log=$6 p=0 f=0

    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
        [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    elif [ "$status" -eq 0 ]; then
        p=1
    else
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f))

    if [ "$f" -eq 0 ]; then
        # What was skipped, and why, is worth a line even when all is well.
        printf 'ok    %4ds  %-28s %5d passed\n' "$seconds" "$name" "$p"
        grep '^skipped:' "$log" | sed 's/^/              /'
        return 0
    fi
    [ "$status" -eq 124 ] && echo "time limit of $limit s exceeded" >>"$log"
    printf 'FAIL  %4ds  %-28s %5d passed, %d failed: %s\n' "$seconds" "$name" "$p" "$f" "$command"
    grep -v '^ok  ' "$log" | tail -n 80 | sed 's/^/      | /'
    return 1
}

while read -r limit name command; do
    [ -n "$limit" ] || continue
    mark=${limit%%[0-9]*}
    limit=${limit#"$mark"}
    begin=$SECONDS
    if [ "$mark" = '&' ]; then
        log=$logs/${#beside[@]}
        echo "$(date +%s) $limit $name $command" >"$log.line"
        timeout --kill-after=10 "$limit" bash -c "$command" >"$log" 2>&1 </dev/null &
        beside+=($!)
        continue
    fi
    timeout --kill-after=10 "$limit" bash -c "$command" >"$logs/now" 2>&1 </dev/null
    judge $? $((SECONDS - begin)) "$limit" "$name" "$command" "$logs/now" && continue
    [ "$mark" = '!' ] && kill "${beside[@]}" 2>/dev/null
    [ "$mark" = '!' ] && break
done

for i in "${!beside[@]}"; do
    wait "${beside[i]}"
    status=$?
    read -r begin limit name command <"$logs/$i.line"
    judge $status $(($(date +%s -r "$logs/$i") - begin)) "$limit" "$name" "$command" "$logs/$i"
done
beside=()

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
