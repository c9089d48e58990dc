#!/usr/bin/env bash
# run-tests.sh - runs the commands on standard input and adds up what they report.
#
# A line is a time limit in seconds, a name and a command.  Limits are those of a quiet machine: a
# command is ended after four times as long, since virtual machines may get a quarter of a core.
#
#     60    layers         tools/check-layers.sh
#     !900  build          make programs
#     =400  quickstart     tests/e2e/train_quickstart.sh
#     &2400 load           build/release/tests/load/load_serve --seconds 1800
#     wait
#
# One more runs at a time than there are cores (or $JOBS): commands wait for clocks and sockets a fifth of
# their time.  `!` and `=` mark commands that run alone, after all before them and before all after; without
# one of `!` the rest makes no sense.  `&` marks one that runs beside the following ones and does not count
# as a job.  `wait` waits until all commands before it have ended; if one marked `&` failed, nothing after
# it is run.
#
# A command whose output ends in "N passed, N failed, N skipped" counts as that many tests.  Any
# other counts as one, passed if it exits with 0; each of its lines "skipped: WHY" counts as one
# skipped test, and one that is its last line takes the place of the passed one.  A crash, a
# time-out or an unexplained exit status is a failure.  Output is shown for failures, reasons for
# what was skipped.  The last line is the sum; the exit status is 0 when nothing failed.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL

jobs=${JOBS:-$(($(nproc) + 1))}
logs=$(mktemp -d)
declare -A log_of # by pid: of what runs in a place; beside it lie files with the line and the status
places=()         # pids that take a place
beside=()         # "PID LOG" of those that take none: a pid may come again before the end
passed=0 failed=0 skipped=0 n_started=0 hopeless=
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT

judge() { # judge STATUS SECONDS LIMIT NAME COMMAND LOG: adds up and tells; false for a failure
    local status=$1 seconds=$2 limit=$3 name=$4 command=$5 log=$6 p=0 f=0 s=0 last
    last=$(tail -n 1 "$log")

    if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]} s=${BASH_REMATCH[3]}
        [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    elif [ "$status" -eq 0 ]; then
        s=$(grep -c '^skipped:' "$log")
        [[ $last == skipped:* ]] || p=1
    else
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))

    if [ "$f" -eq 0 ]; then
        printf 'ok    %4ds  %-28s %5d passed' "$seconds" "$name" "$p"
        [ "$s" -eq 0 ] || printf ', %d skipped' "$s"
        echo
        grep '^skipped:' "$log" | sed 's/^/              /'
        return 0
    fi
    [ "$status" -eq 124 ] && echo "time limit of $limit s exceeded" >>"$log"
    printf 'FAIL  %4ds  %-28s %5d passed, %d failed: %s\n' "$seconds" "$name" "$p" "$f" "$command"
    grep -v '^ok  ' "$log" | tail -n 80 | sed 's/^/      | /'
    return 1
}

# A command leaves its status in a file: bash may forget that of one that ended long ago.
start() { # start LIMIT NAME COMMAND: $! is its pid, $log its log
    log=$logs/$((n_started++))
    echo "$(date +%s) $*" >"$log.line"
    # shellcheck disable=SC2016 # the inner shell's words
    timeout --kill-after=10 "$1" bash -c 'bash -c "$1"; echo $? >"$2"' _ "$3" "$log.status" \
        >"$log" 2>&1 </dev/null &
}

settle() { # settle LOG: of what has ended; false for a failure
    local begin limit name command status
    read -r begin limit name command <"$1.line"
    status=$(cat "$1.status" 2>/dev/null || echo 124) # it had no time to write one
    judge "$status" $(($(date +%s) - begin)) "$limit" "$name" "$command" "$1"
}

finish() { # finish PID...: waits for one of them, which it leaves in $ended; false for a failure
    wait -n -p ended "$@"
    settle "${log_of[$ended]}"
}

wait_for_places() { # until fewer than $1 are taken
    while [ ${#places[@]} -ge "$1" ]; do
        local left=() pid
        finish "${places[@]}"
        for pid in "${places[@]}"; do
            [ "$pid" = "$ended" ] || left+=("$pid")
        done
        places=(${left[@]+"${left[@]}"})
    done
}

finish_beside() { # waits for what runs beside the others; false for a failure
    local one pid log good=0

    for one in ${beside[@]+"${beside[@]}"}; do
        read -r pid log <<<"$one"
        [ -n "$hopeless" ] && kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        settle "$log" || good=1
    done
    beside=()
    return $good
}

while read -r limit name command; do
    [ -n "$limit" ] || continue
    if [ "$limit" = wait ]; then
        wait_for_places 1
        finish_beside && continue
        hopeless=yes
        break
    fi
    mark=${limit%%[0-9]*}
    limit=$((4 * ${limit#"$mark"}))
    case $mark in
    '&')
        start "$limit" "$name" "$command"
        beside+=("$! $log")
        ;;
    '!' | '=')
        wait_for_places 1
        start "$limit" "$name" "$command"
        log_of[$!]=$log
        if ! finish $! && [ "$mark" = '!' ]; then
            hopeless=yes
            break
        fi
        ;;
    *)
        wait_for_places "$jobs"
        start "$limit" "$name" "$command"
        log_of[$!]=$log
        places+=($!)
        ;;
    esac
done
wait_for_places 1
finish_beside

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
