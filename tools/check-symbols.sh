#!/usr/bin/env bash
# check-symbols.sh PROGRAM ARCHIVE - names that others can see carry our prefix.
#
# In the archive every global symbol is ml_* or miles_*; the program exports miles_* alone.
set -u
program=$1 archive=$2
bad=0

strangers=$(nm -g --defined-only "$archive" 2>/dev/null |
    awk 'NF == 3 && $3 !~ /^(ml|miles)_/ { print $3 }' | sort -u)
if [ -n "$strangers" ]; then
    echo "$archive: global symbols without the prefix ml_:"
    echo "$strangers"
    bad=1
fi

# Symbols with a version (stdout@GLIBC) are copies of the C library's.
exported=$(nm -D --defined-only "$program" 2>/dev/null |
    awk 'NF == 3 && $3 !~ /@/ && $3 !~ /^miles_/ { print $3 }' | grep -vE '^(_IO_stdin_used|__asan|__ubsan|__tsan)')
if [ -n "$exported" ]; then
    echo "$program: exported symbols that are not miles_*:"
    echo "$exported"
    bad=1
fi
exit $bad
