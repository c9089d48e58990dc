#!/usr/bin/env bash
# check-layers.sh - includes point downwards only.
#
# A file of src/ may include headers of its own folder and of rooms with a lower level, never
# of another room of its own level.  Some system headers are kept to one place each.
set -u
cd "$(dirname "$0")/.." || exit 2

level() {
    case $1 in
    base) echo 0 ;;
    tensor | text | net) echo 1 ;;
    backend | comm | io) echo 2 ;;
    model) echo 3 ;;
    engine | train) echo 4 ;;
    rl | serve) echo 5 ;;
    plugin) echo 6 ;;
    run) echo 7 ;;
    cli) echo 8 ;;
    *) echo unknown ;;
    esac
}

# The only folder, or file, in which a system header may be included.
home_of() {
    case $1 in
    cuda* | cublas* | nvrtc*) echo src/backend/cuda/ ;;
    mpi.h) echo src/comm/mpi/ ;;
    nccl.h) echo src/comm/nccl/ ;;
    immintrin.h | x86intrin.h | xmmintrin.h | emmintrin.h) echo src/backend/cpu/x86/ ;;
    pcre2.h) echo src/text/regex.c ;;
    utf8proc.h) echo src/text/ ;;
    zstd.h) echo src/io/zst.c ;;
    yaml.h) echo src/io/yaml.c ;;
    sqlite3.h) echo src/rl/run_store ;;
    event2/*) echo src/net/ ;;
    arm_neon.h | arm_sve.h | arm_bf16.h) echo src/backend/cpu/arm/ ;;
    esac
}

bad=0
complain() {
    echo "$1"
    bad=1
}

while IFS=: read -r file line text; do
    included=$(sed -E 's/^ *# *include *["<]([^">]+)[">].*/\1/' <<<"$text")
    at="$file:$line"
    if [[ $text == *'<'* ]]; then
        home=$(home_of "$included")
        [ -z "$home" ] || [[ $file == "$home"* ]] ||
            complain "$at: <$included> belongs in $home only"
        continue
    fi
    from=$(cut -d/ -f2 <<<"$file")
    to=${included%%/*}
    [ "$from" = "$to" ] && continue
    [ "$to" = miles ] && continue # include/miles/: the interface of plugins, seen by all
    from_level=$(level "$from") to_level=$(level "$to")
    if [ "$from_level" = unknown ] || [ "$to_level" = unknown ]; then
        complain "$at: includes \"$included\": write the path from src/, and give a new room its level in tools/check-layers.sh"
    elif [ "$to_level" -ge "$from_level" ]; then
        complain "$at: $from (level $from_level) includes \"$included\" of $to (level $to_level)"
    fi
done < <(grep -rnE '^ *# *include' --include='*.[ch]' --include='*.inc' --include='*.cu' --include='*.cuh' src)

exit $bad
