#!/usr/bin/env bash
# check-names.sh - a file's name says where it is: unique in src/, header guards after the path.
set -u
cd "$(dirname "$0")/.." || exit 2
bad=0

twice=$(find src include -type f 2>/dev/null | sed 's|.*/||' | sort | uniq -d)
for name in $twice; do
    echo "$name: more than one file of this name: $(find src include -name "$name" 2>/dev/null | tr '\n' ' ')"
    bad=1
done

while read -r header; do
    guard=ML_$(tr 'a-z/.-' 'A-Z___' <<<"${header#src/}")
    if ! grep -q "^#ifndef $guard\$" "$header" || ! grep -q "^#define $guard\$" "$header"; then
        echo "$header: the header guard should be $guard"
        bad=1
    fi
done < <(find src tests -name '*.h')

exit $bad
