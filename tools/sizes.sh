#!/usr/bin/env bash
# sizes.sh - the ten longest files and functions, and the whole.  Numbers to look at, no gate.
set -u
cd "$(dirname "$0")/.." || exit 2
mapfile -t files < <(find src include tests bench \( -name '*.[ch]' -o -name '*.inc' \) 2>/dev/null)

echo "longest files (look again at 1000 lines):"
wc -l "${files[@]}" | grep -v ' total$' | sort -rn | head -n 10

echo "longest functions (look again at 60 lines):"
awk '
    FNR == 1 { name = "" }
    /^[A-Za-z_].*\(/ && !/;$/ { name = $0; start = FNR }
    /^}/ && name != "" { print FNR - start + 1, FILENAME ":" start, substr(name, 1, 60); name = "" }
' "${files[@]}" | sort -rn | head -n 10

count() { find "$1" \( -name '*.[ch]' -o -name '*.inc' \) -exec cat {} + | wc -l; }
echo "lines of src: $(count src), of tests: $(count tests)"
