#!/usr/bin/env bash
# install.sh BUILD PREFIX [DESTDIR] - copies the program and what belongs to it below PREFIX.
# install.sh --uninstall PREFIX [DESTDIR] - removes what the first form copied.
#
# STRIP=1 leaves out debug information.  The list of installed files is
# PREFIX/share/miles/installed-files; nothing outside PREFIX is written.
set -euo pipefail

dirs_of() { # directories of the names on standard input, with their parents
    while IFS= read -r name; do
        while [ "${name%/*}" != "$name" ]; do
            name=${name%/*}
            echo "$name"
        done
    done | sort -u
}

uninstall() { # uninstall ROOT
    local list=$1/share/miles/installed-files name names

    [ -f "$list" ] || { echo "install.sh: $list does not exist: nothing is installed there" >&2; exit 1; }
    names=$(cat "$list" && echo share/miles/installed-files)
    while IFS= read -r name; do rm -f "$1/$name"; done <<<"$names"
    # Directories that others use too are not empty, and stay.
    dirs_of <<<"$names" | sort -r | while IFS= read -r name; do rmdir "$1/$name" 2>/dev/null || true; done
}

if [ "${1-}" = --uninstall ]; then
    uninstall "${3-}$2"
    exit 0
fi

build=$1 prefix=$2
root=${3-}$prefix
list=$(mktemp)
trap 'rm -f "$list"' EXIT

put() { # put MODE SOURCE NAME
    install -D -m "$1" "$2" "$root/$3"
    echo "$3" >>"$list"
}
put_text() { # put_text NAME, from standard input
    mkdir -p "$root/$(dirname "$1")"
    cat >"$root/$1"
    chmod 644 "$root/$1"
    echo "$1" >>"$list"
}

put 755 "$build/miles" bin/miles
for so in "$build"/libmiles_*.so; do
    if [ -e "$so" ]; then put 644 "$so" "lib/miles/$(basename "$so")"; fi
done
if [ "${STRIP-}" = 1 ]; then
    strip --strip-unneeded "$root/bin/miles" "$root"/lib/miles/*.so 2>/dev/null || strip --strip-unneeded "$root/bin/miles"
fi
for h in include/miles/*.h; do put 644 "$h" "$h"; done
git ls-files share recipes 2>/dev/null | grep . >/dev/null && files=$(git ls-files share recipes) ||
    files=$(find share recipes -type f -not -name '*.pyc')
for f in $files; do
    mode=644
    if [ -x "$f" ]; then mode=755; fi
    put $mode "$f" "share/miles/${f#share/}"
done
for f in README.md CHANGELOG.md LICENSE docs/*.md; do put 644 "$f" "share/doc/miles/$(basename "$f")"; done

miles=$build/miles
"$miles" --print-man | put_text share/man/man1/miles.1
# The names are the first 13 columns of each command's line.
"$miles" --help | sed -n 's/^  \([a-z].\{12\}\).*/\1/p' | sed 's/ *$//' | while IFS= read -r command; do
    # shellcheck disable=SC2086 # a command may have two words
    "$miles" --print-man $command | put_text "share/man/man1/miles-${command// /-}.1"
done
"$miles" --print-completion bash | put_text share/bash-completion/completions/miles
"$miles" --print-completion zsh | put_text share/zsh/vendor-completions/_miles
"$miles" --print-completion fish | put_text share/fish/vendor_completions.d/miles.fish
sort "$list" >"$root/share/miles/installed-files"
