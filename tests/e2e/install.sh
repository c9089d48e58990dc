#!/usr/bin/env bash
# install.sh BUILD [long]: an installed program runs, and an uninstalled one leaves nothing.  long: also the Debian
# package in a clean root and the wheel in a clean environment.
set -u

build=$1
n_pass=0 n_fail=0 n_skip=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check() { # check NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        n_pass=$((n_pass + 1))
        echo "ok   $name"
    else
        n_fail=$((n_fail + 1))
        echo "FAIL $name"
        tail -n 5 "$work/out"
    fi
}
skip() {
    n_skip=$((n_skip + 1))
    echo "skip $1"
}

# A rollout and a train step of a tiny model, by the program $1 in an environment without the checkout.
"$build/tools/quickstart_make" "$work/quick" 1 >/dev/null
train="train --hf-checkpoint $work/quick/model --prompt-data data.jsonl --label-key label --apply-chat-template --rollout-batch-size 2
    --n-samples-per-prompt 2 --rollout-max-response-len 4 --num-rollout 1 --rm-type deterministic_random --save run"
smoke() {
    local dir
    dir=$(mktemp -d -p "$work")
    printf '{"input": "1+1", "label": "2"}\n{"input": "2+2", "label": "4"}\n' >"$dir/data.jsonl"
    # shellcheck disable=SC2086 # several words
    (cd "$dir" && "$@" $train && test -s run/metrics.jsonl)
}
files_of() { (cd "$1" && find . -not -type d | sort); }

prefix_works() {
    tools/install.sh "$build" /opt/miles "$work/dest" && [ "$(ls "$work/dest")" = opt ]
}
pages_render() {
    local page
    for page in "$work"/dest/opt/miles/share/man/man1/*.1; do
        grep -q '^\.SH EXIT STATUS' "$page" || return 1
    done
    [ -s "$work/dest/opt/miles/share/man/man1/miles-bench-serve.1" ] && [ -s "$work/dest/opt/miles/share/man/man1/miles-chat-template.1" ]
}
finds_parts() {
    local so
    for so in "$work"/dest/opt/miles/lib/miles/*.so; do
        [ -e "$so" ] || return 0 # built without MPI and CUDA
        "$work/dest/opt/miles/bin/miles" --version | grep -q "lib/miles/$(basename "$so")" || return 1
    done
}
uninstall_leaves_nothing() {
    mkdir -p "$work/dest/opt/miles/share/man/man1" && touch "$work/dest/opt/miles/share/man/man1/other.1"
    tools/install.sh --uninstall /opt/miles "$work/dest" && [ "$(files_of "$work/dest")" = ./opt/miles/share/man/man1/other.1 ]
}
second_uninstall_says_so() {
    ! tools/install.sh --uninstall /opt/miles "$work/dest" 2>"$work/err" && grep -q 'nothing is installed' "$work/err"
}
completes() { # the flags of a command, by the shells that are here
    "$build/miles" --print-completion bash >"$work/bash" && bash -c "source $work/bash; COMP_WORDS=(miles serve --tool-call-pa); COMP_CWORD=2
        _miles; [ \"\${COMPREPLY[0]}\" = --tool-call-parser ]" || return 1
    if command -v zsh >/dev/null; then "$build/miles" --print-completion zsh >"$work/zsh" && zsh -n "$work/zsh" || return 1; fi
    if command -v fish >/dev/null; then
        "$build/miles" --print-completion fish >"$work/fish"
        fish -c "source $work/fish; complete -C 'miles bench serve --num-p'" | grep -q num-prompts || return 1
    fi
}

check "make install writes below the prefix only" prefix_works
check "the installed program trains" smoke "$work/dest/opt/miles/bin/miles"
check "the installed program finds its libraries" finds_parts
check "every command has a manual page" pages_render
check "make uninstall leaves the files of others" uninstall_leaves_nothing
check "a second make uninstall says that nothing is there" second_uninstall_says_so
check "completion knows the flags" completes

static_needs_only_libc() {
    ! ldd build/static/miles | awk '{print $1}' | grep -vE '^(linux-vdso|libm|libc|/lib.*/ld-linux)' | grep .
}
deb_in_clean_root() { # at the same paths, so that the smoke run is the same
    debootstrap --variant=minbase bookworm "$work/clean" >/dev/null && mkdir -p "$work/clean$work" && cp -r "$work/quick" "$work/clean$work/" &&
        cp build/miles-c_*.deb "$work/clean/tmp/" && printf '{"input": "1+1", "label": "2"}\n' >"$work/clean/tmp/data.jsonl" &&
        chroot "$work/clean" sh -c "apt-get install -y --no-install-recommends /tmp/miles-c_*.deb && cd /tmp && miles ${train//$'\n'/ } &&
            test -s run/metrics.jsonl && apt-get remove -y miles-c && test ! -e /usr/bin/miles"
}
wheel_in_clean_environment() {
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --no-index build/miles_c-*.whl &&
        smoke "$work/venv/bin/miles" && "$work/venv/bin/pip" uninstall -y -q miles-c && [ ! -e "$work/venv/bin/miles" ]
}
if [ "${2-}" = long ]; then
    rm -f build/miles-c_*.deb build/miles_c-*.whl
    check "make deb and make wheel build" make --no-print-directory deb wheel
    check "the static program needs the C library alone" static_needs_only_libc
    if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then
        check "the Debian package works in a clean root" deb_in_clean_root
    else
        skip "the Debian package in a clean root: needs root and debootstrap"
    fi
    if python3 -c 'import venv, ensurepip' 2>/dev/null; then
        check "the wheel works in a clean environment" wheel_in_clean_environment
    else
        skip "the wheel: needs python3-venv"
    fi
fi
echo "$n_pass passed, $n_fail failed, $n_skip skipped"
[ $n_fail -eq 0 ]
