#!/usr/bin/env bash
# check-layers.sh - includes point downwards only.
#
# A file of src/ may include headers of its own folder and of modules with a lower level, never
# of another module of its own level.  The same rule holds between the folders of a module that
# has sub-levels.  Some system headers are kept to one place each.
set -u
cd "$(dirname "$0")/.." || exit 2

# level PATH: REPLY is the level of the module that a path below src/ belongs to.
level() {
    case $1 in
    base/*) REPLY=0 ;;
    tensor/* | text/* | net/*) REPLY=1 ;;
    backend/* | comm/* | io/*) REPLY=2 ;;
    model/*) REPLY=3 ;;
    gen/gen.h) REPLY=3 ;; # the interface of generators, which the engine implements
    engine/* | train/*) REPLY=4 ;;
    gen/*) REPLY=5 ;;
    rl/* | serve/*) REPLY=6 ;;
    plugin/* | dash/* | tinker/*) REPLY=7 ;;
    run/*) REPLY=8 ;;
    cli/*) REPLY=9 ;;
    *) REPLY=unknown ;;
    esac
}

# sublevel PATH: REPLY is "FOLDER LEVEL" inside its module; empty where a module has no sub-levels.
# A file that is named here has its own level.
sublevel() {
    REPLY=
    case $1 in
    text/jinja/*) REPLY='jinja 1' ;;
    text/tokenizer/*) REPLY='tokenizer 1' ;;
    text/grammar/*) REPLY='grammar 2' ;;
    text/chat/*) REPLY='chat 2' ;;
    text/*) REPLY='text 0' ;;

    backend/cuda/attn/*) REPLY='attn 1' ;;
    backend/cuda/gemm/*) REPLY='gemm 1' ;;
    backend/cuda/moe/*) REPLY='moe 1' ;;
    backend/cuda/sample/*) REPLY='sample 2' ;;
    backend/cuda/fuse.cu | backend/cuda/cuda.cu) REPLY='ops 3' ;; # these call all of them
    backend/cuda/*) REPLY='cuda 0' ;;

    rl/data/*) REPLY='data 1' ;;
    rl/reward/math/*) REPLY='math 1' ;;
    rl/reward/graders/*) REPLY='graders 3' ;;
    rl/reward/*) REPLY='reward 2' ;;
    rl/env/*) REPLY='env 3' ;;
    rl/learn/reduce/*) REPLY='reduce 1' ;;
    rl/learn/correction/*) REPLY='correction 1' ;;
    rl/learn/loss/*) REPLY='loss 2' ;;
    rl/learn/advantage/*) REPLY='advantage 3' ;;
    rl/record/*) REPLY='record 4' ;;
    rl/learn/*) REPLY='learn 5' ;;
    rl/rollout/*) REPLY='rollout 6' ;;
    rl/eval/*) REPLY='eval 7' ;;
    rl/loop/*) REPLY='loop 8' ;;
    rl/*) REPLY='rl 0' ;;

    cli/config.h) REPLY='config 0' ;;
    cli/flags/*) REPLY='flags 1' ;;
    cli/commands/*) REPLY='commands 3' ;;
    cli/*) REPLY='cli 2' ;;
    esac
}

# home_of HEADER: REPLY is the only folder, or file, in which a system header may be included.
home_of() {
    REPLY=
    case $1 in
    cuda* | cublas* | nvrtc*) REPLY=src/backend/cuda/ ;;
    mpi.h) REPLY=src/comm/mpi/ ;;
    nccl.h) REPLY=src/comm/nccl/ ;;
    immintrin.h | x86intrin.h | xmmintrin.h | emmintrin.h) REPLY=src/backend/cpu/x86/ ;;
    pcre2.h) REPLY=src/text/regex.c ;;
    utf8proc.h) REPLY=src/text/ ;;
    zstd.h) REPLY=src/io/zst.c ;;
    snappy-c.h | lz4.h | brotli/*) REPLY=src/io/parquet/ ;;
    yaml.h) REPLY=src/io/yaml.c ;;
    sqlite3.h) REPLY=src/rl/record/run_store ;;
    event2/*) REPLY=src/net/ ;;
    openssl/sha.h) REPLY=src/base/sha256.c ;;
    openssl/*) REPLY=src/net/tls ;;
    arm_neon.h | arm_sve.h | arm_bf16.h) REPLY=src/backend/cpu/arm/ ;;
    esac
}

bad=0
complain() {
    echo "$1"
    bad=1
}

# below WHAT FROM FROM_LEVEL TO TO_LEVEL: complains unless TO is FROM or has a lower level.
below() {
    [ "$2" = "$4" ] || [ "$5" -lt "$3" ] ||
        complain "$at: $2 ($1 $3) includes \"$included\" of $4 ($1 $5)"
}

while IFS=: read -r file line text; do
    [[ $text =~ [\"\<]([^\"\>]+)[\"\>] ]] || continue
    included=${BASH_REMATCH[1]}
    at="$file:$line"
    if [[ $text == *'<'* ]]; then
        home_of "$included"
        # version.c only asks each library for its version.
        [ -z "$REPLY" ] || [[ $file == "$REPLY"* ]] || [ "$file" = src/cli/version.c ] ||
            complain "$at: <$included> belongs in $REPLY only"
        continue
    fi
    path=${file#src/}
    from=${path%%/*} to=${included%%/*}
    [ "$to" = miles ] && continue # include/miles/: the interface of plugins, seen by all
    if [ "$from" != "$to" ]; then
        level "$path" && from_level=$REPLY
        level "$included" && to_level=$REPLY
        if [ "$from_level" = unknown ] || [ "$to_level" = unknown ]; then
            complain "$at: includes \"$included\": write the path from src/, and give a new module its level in tools/check-layers.sh"
        else
            below level "$from" "$from_level" "$to" "$to_level"
        fi
        continue
    fi
    sublevel "$path" && folder=${REPLY% *} from_level=${REPLY#* }
    sublevel "$included" && other=${REPLY% *} to_level=${REPLY#* }
    [ -z "$folder" ] || [ -z "$other" ] || below sub-level "$folder" "$from_level" "$other" "$to_level"
done < <(grep -rnE '^ *# *include' --include='*.[ch]' --include='*.inc' --include='*.cu' --include='*.cuh' src)

exit $bad
