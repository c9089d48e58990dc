#!/usr/bin/env bash
# check_ranks.sh BUILD WORK [PART[=PATTERN]...] - ranks that share the GPU, against one rank.
#
#   scores  miles score: the bytes of one rank, and gradients within the rounding of sums
#   train   miles train: its samples and log-probs, those of training are those of the rollout;
#           its snapshots, where the layout promises them
#   memory  the peak of each rank is within 3 % of its plan, and that of the GPU of their sum
#
# PATTERN selects cases by their lines below.  MILES_DEVICE is the device (cuda).  Runs follow each
# other: processes that share a GPU take turns on it, and wait for each turn.
set -u
build=$1
work=$2/ranks
shift 2
[ $# -eq 0 ] && set -- scores train memory
here=$(dirname "$0")
device=${MILES_DEVICE:-cuda}
passed=0 failed=0
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1
if ! command -v mpirun > /dev/null; then
    echo "skipped: mpirun is missing (tools/check-deps.sh --install ranks)"
    exit 0
fi
mkdir -p "$work"

miles() { # miles N ARGUMENT...; mpirun would read the list of cases
    local n=$1 launch=()
    shift
    [ "$n" -gt 1 ] && launch=(mpirun --oversubscribe --allow-run-as-root --bind-to none -n "$n")
    timeout --foreground --kill-after=5 150 "${launch[@]}" "$build/miles" "$@" --device "$device" < /dev/null
}
count() { # count STATUS
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

# --- scores -------------------------------------------------------------------

# FAMILY NAME RANKS BOUND-OF-GRADIENTS FLAG...; 0: the same bytes.  NAME-f32: in f32.
score_cases() {
    cat << END
qwen3_moe dp2 2 1e-6
qwen3_moe tp2 2 1e-6 --tensor-model-parallel-size 2
qwen3_moe pp2 2 0 --pipeline-model-parallel-size 2
qwen3_moe ep2 2 1e-6 --expert-model-parallel-size 2
qwen3_moe tp2ep4 4 1e-6 --tensor-model-parallel-size 2 --expert-model-parallel-size 4
qwen3 dp4 4 1e-6
deepseek_v3 tp2pp2 4 1e-6 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
gpt_oss pp2 2 0 --pipeline-model-parallel-size 2
qwen3 cp2 2 1e-2 --context-parallel-size 2
qwen3 cp4 4 1e-2 --context-parallel-size 4
qwen3 cp2-contiguous 2 1e-2 --context-parallel-size 2 --allgather-cp
qwen3_moe cp2tp2 4 1e-2 --context-parallel-size 2 --tensor-model-parallel-size 2
qwen3_moe cp2pp2 4 1e-2 --context-parallel-size 2 --pipeline-model-parallel-size 2
qwen3_next cp2 2 1e-2 --context-parallel-size 2
nemotron_h cp2 2 1e-2 --context-parallel-size 2
deepseek_v3 cp2 2 1e-2 --context-parallel-size 2
deepseek_v32 cp2 2 1e-2 --context-parallel-size 2
gpt_oss cp2 2 1e-2 --context-parallel-size 2
gemma2 cp2 2 1e-2 --context-parallel-size 2
gemma3_text cp4 4 1e-2 --context-parallel-size 4
llama4_text cp2 2 1e-2 --context-parallel-size 2
qwen3_moe cp2-f32 2 1e-6 --context-parallel-size 2
qwen3_next cp4-f32 4 1e-6 --context-parallel-size 4
deepseek_v32 cp2-f32 2 1e-6 --context-parallel-size 2
gpt_oss cp2-f32 2 1e-6 --context-parallel-size 2
END
}
score() { # score FAMILY NAME RANKS FLAG...
    local model=tests/golden/data/$1 out="$work/$1-$2" n=$3 dtype=bf16
    [ "${2%-f32}" = "$2" ] || dtype=f32
    shift 3
    rm -f "$out"
    miles "$n" score --dtype $dtype --hf-checkpoint "$model" --input "$model/golden.safetensors" --output "$out" \
        --threads 2 --entropy --grads "$@" > "$out.log" 2>&1
}
check_score() { # check_score FAMILY NAME RANKS BOUND FLAG...
    local family=$1 name=$2 n=$3 bound=$4 one=one said status
    shift 4
    [ "${name%-f32}" = "$name" ] || one="one-f32"
    [ -e "$work/$family-$one" ] || score "$family" $one 1
    score "$family" "$name" "$n" "$@"
    said=$(tests/e2e/compare_scores.py "$work/$family-$one" "$work/$family-$name" "$bound" 2>&1)
    status=$?
    count $status
    if [ $status -eq 0 ]; then
        echo "score $family, $name: $said"
    else
        echo "FAIL score $family, $name: $(tail -n 3 <<< "$said")"
        tail -n 4 "$work/$family-$name.log"
    fi
}
check_scores() { # check_scores PATTERN
    local line
    rm -f "$work"/*-one "$work"/*-one-f32
    while read -r -a line; do
        check_score "${line[@]}"
    done < <(score_cases | grep -e "$1")
}

# --- runs ---------------------------------------------------------------------

# FAMILY NAME RANKS SNAPSHOT-OF FLAG...; "-": gradients are sums over ranks.
train_cases() {
    cat << END
qwen3 dp2 2 -
qwen3 dp2-again 2 dp2
qwen3 pp2 2 one --pipeline-model-parallel-size 2
qwen3 tp2pp2 4 - --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --rollout-num-gpus-per-engine 4
qwen3 fsdp4 4 - --train-backend fsdp
qwen3 engine2 2 dp2 --rollout-num-gpus-per-engine 2
qwen3 cp2tp2 4 - --context-parallel-size 2 --tensor-model-parallel-size 2
qwen3_moe cp2 2 - --context-parallel-size 2 --use-rollout-routing-replay
qwen3_moe ep2 2 - --expert-model-parallel-size 2
END
}
train() { # train FAMILY NAME RANKS FLAG...
    local at="$work/$1" run="$work/$1/$2" n=$3
    shift 3
    rm -rf "$run"
    miles "$n" train --dtype bf16 --hf-checkpoint "$at/model" --save "$run" --prompt-data "$at/prompts.jsonl" \
        --input-key messages --label-key label --apply-chat-template --rm-type deterministic_random \
        --num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 8 --lr 5e-4 \
        --lr-decay-style constant --use-dynamic-batch-size --max-tokens-per-gpu 256 --sglang-max-total-tokens 8192 --threads 4 \
        "$@" > "$run.log" 2>&1
}
# The samples of a rollout with their tokens and log-probs.
samples() { "$build/miles" inspect "$1" --step 0 --tokens; }
compare_train() { # compare_train FAMILY NAME SNAPSHOT-OF
    local run="$work/$1/$2" one="$work/$1/one" wrong=
    cmp -s <(samples "$run") <(samples "$one") || wrong+=" samples"
    cmp -s <(head -n 1 "$run/metrics.jsonl") <(head -n 1 "$one/metrics.jsonl") || wrong+=" first-metrics"
    [ "$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$run/metrics.jsonl")" = 3 ] || wrong+=" rollout-and-training"
    [ "$3" = - ] || cmp -s "$run/metrics.jsonl" "$work/$1/$3/metrics.jsonl" || wrong+=" metrics"
    [ "$3" = - ] || diff -rq "$run/iter_0000002" "$work/$1/$3/iter_0000002" > /dev/null || wrong+=" snapshot"
    [ -z "$wrong" ]
    count $?
    if [ -z "$wrong" ]; then
        echo "train $1, $2: the samples of one rank, rollout and training agree$([ "$3" = - ] || echo ", snapshot of $3")"
    else
        echo "FAIL train $1, $2: differs in$wrong"
        grep -v '^ *rollout' "$run.log" | tail -n 4
    fi
}
check_train() { # check_train PATTERN
    local family name n like flags
    while read -r family name n like flags; do
        if [ ! -e "$work/$family/one" ]; then
            "$build/tools/quickstart_make" "$work/$family" 1 "$family" > /dev/null
            train "$family" one 1
        fi
        # shellcheck disable=SC2086
        train "$family" "$name" "$n" $flags
        compare_train "$family" "$name" "$like"
    done < <(train_cases | grep -e "$1")
}

# --- memory -------------------------------------------------------------------

# RANKS NAME FLAG...; NAME-alone: without a reference, so that nothing is scored.
memory_cases() {
    cat << END
1 one
2 dp2
2 tp2 --tensor-model-parallel-size 2
2 pp2 --pipeline-model-parallel-size 2
2 pp2-alone --pipeline-model-parallel-size 2
2 engine2 --rollout-num-gpus-per-engine 2
4 dp4
4 fsdp4 --train-backend fsdp
4 fsdp4-alone --train-backend fsdp
4 tp2pp2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
END
}
memory_run() { # memory_run RANKS NAME FLAG...
    local n=$1 at="$work/memory/$2" reference=()
    [ "${2%-alone}" = "$2" ] && reference=(--use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl)
    shift 2
    rm -rf "$at"
    mkdir -p "$at"
    miles "$n" train --dtype bf16 --hf-checkpoint "$work/memory/model" --prompt-data "$work/memory/data.jsonl" \
        --input-key text --label-key label --rm-type random --num-rollout 2 --rollout-batch-size 8 \
        --n-samples-per-prompt 8 --rollout-max-response-len 64 --advantage-estimator grpo --lr 1e-6 \
        "${reference[@]}" --use-dynamic-batch-size --max-tokens-per-gpu 4096 --record-memory-history --memory-snapshot-dir "$at" "$@" \
        > "$at/log" 2>&1 || { echo "FAIL memory $*" && tail -n 5 "$at/log"; return 1; }
    "$here/rank_memory.py" "$at" "$n"
}
check_memory() { # check_memory PATTERN
    local n name flags
    "$here/rank_memory.py" --model "$work/memory"
    while read -r n name flags; do
        echo "memory $name:"
        # shellcheck disable=SC2086
        memory_run "$n" "$name" $flags
        count $?
    done < <(memory_cases | grep -e "$1")
}

for part in "$@"; do
    pattern=${part#*=}
    [ "$pattern" = "$part" ] && pattern=
    "check_${part%%=*}" "$pattern"
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
