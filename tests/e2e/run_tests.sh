#!/usr/bin/env bash
# run_tests.sh - tools/run-tests.sh counts every command of its list: also those that run beside
# the others and end before or after them, and those that skip tests.
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

expect '4 passed, 0 failed, 0 skipped' 0 <<'END'
&9 early true
9 one sleep 0.3
9 two echo '2 passed, 0 failed, 0 skipped'
END
expect '2 passed, 1 failed, 0 skipped' 1 <<'END'
&9 early false
9 one sleep 0.3
9 two true
END
expect '1 passed, 3 failed, 0 skipped' 1 <<'END'
&9 late sleep 0.5; false
9 three sleep 0.2; echo '1 passed, 2 failed, 0 skipped'; false
END
# `wait` waits for commands marked `&`; if one of them failed, the rest is not run.
built=$(mktemp -u)
expect '3 passed, 0 failed, 0 skipped' 0 <<END
&9 build sleep 0.4; touch $built
9 one test ! -e $built
wait
9 two test -e $built
END
rm -f "$built"
expect '1 passed, 1 failed, 0 skipped' 1 <<'END'
&9 build sleep 0.2; false
9 one true
wait
9 never true
END
expect '0 passed, 1 failed, 0 skipped' 1 <<'END'
!9 build false
9 never true
END
expect '0 passed, 1 failed, 0 skipped' 1 <<'END'
1 slow sleep 9
END
# Counted by the program itself; instead of the whole command; besides what passed; not when it fails.
expect '3 passed, 0 failed, 4 skipped' 0 <<'END'
9 counts echo 'skipped: a: why'; echo '1 passed, 0 failed, 1 skipped'
9 all echo 'skipped: there is no compiler'
9 some echo 'skipped: one'; echo 'skipped: two'; echo done
9 whole true
END
expect '1 passed, 1 failed, 0 skipped' 1 <<'END'
9 whole true
9 fails echo 'skipped: why'; false
END
# Nothing that passed is no success.
expect '0 passed, 0 failed, 1 skipped' 1 <<'END'
9 all echo 'skipped: there is no compiler'
END
exit $failed
