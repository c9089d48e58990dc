#!/usr/bin/env bash
# run_tests.sh - the runner of the test lists counts all it is given: also what runs beside the
# others and ends before or after them.
set -u
failed=0

# expect LAST-LINE STATUS: of the list on standard input
expect() {
    local out status
    out=$(tools/run-tests.sh)
    status=$?
    [ "$(tail -n 1 <<<"$out")" = "$1" ] && [ "$status" -eq "$2" ] && return
    printf 'expected "%s" and status %s, got %s after\n%s\n' "$1" "$2" "$status" "$out"
    failed=1
}

expect '4 passed, 0 failed' 0 <<'END'
&9 early true
9 one sleep 0.3
9 two echo '2 passed, 0 failed'
END
expect '2 passed, 1 failed' 1 <<'END'
&9 early false
9 one sleep 0.3
9 two true
END
expect '1 passed, 3 failed' 1 <<'END'
&9 late sleep 0.5; false
9 three sleep 0.2; echo '1 passed, 2 failed'; false
END
expect '0 passed, 1 failed' 1 <<'END'
!9 build false
9 never true
END
expect '0 passed, 1 failed' 1 <<'END'
1 slow sleep 9
END
exit $failed
