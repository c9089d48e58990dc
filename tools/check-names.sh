#!/usr/bin/env bash
# check-names.sh - names are unique: of files in src/, of types, of tests; header guards follow the path.
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

types=$(grep -rhoE '^\} (ml|miles)_[a-z0-9_]+;' src include --include='*.[ch]' | sort | uniq -d)
if [ -n "$types" ]; then
    echo "types that are defined twice: $types"
    bad=1
fi

# The rows of tables of tests: { "name", function.
tests=$(find tests -name 'test_*.c' -exec sed -s -n '/ml_test tests\[\]/,$p' {} + |
    grep -oE '\{ "[^"]+",' | sort | uniq -d)
if [ -n "$tests" ]; then
    echo "names of tests that occur twice: $tests"
    bad=1
fi

exit $bad
