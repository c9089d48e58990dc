#!/usr/bin/env bash
# ranks.sh BUILD [long] - mpirun -n N miles train: one run over N ranks; long: more layouts.
set -u
build=$1 long=${2:-}
if ! command -v mpirun >/dev/null || [ ! -e "$build/libmiles_mpi.so" ]; then
    echo "skipped: mpirun or $build/libmiles_mpi.so is missing (tools/check-deps.sh --install ranks, then make)"
    exit 0
fi
export OMPI_MCA_btl_vader_single_copy_mechanism=none # needs a permission that containers lack
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 status=0
"$build/tools/quickstart_make" "$work" 1 >/dev/null
head -n 16 "$work/unseen.jsonl" >"$work/eval.jsonl"

miles() { # miles N COMMAND RUN FLAGS...: a run over N ranks, its output in $work/RUN.log
    local n=$1 command=$2 run=$3
    shift 3
    timeout --kill-after=5 150 mpirun --oversubscribe --allow-run-as-root -n "$n" ${on_host:+"$on_host"} \
        "$build/miles" "$command" --hf-checkpoint "${model:-$work/model}" --save "$work/$run" --input-key messages \
        --rollout-seed 1 --lr 5e-4 --lr-decay-style constant --use-dynamic-batch-size --max-tokens-per-gpu 256 \
        --threads 2 "$@" >"$work/$run.log" 2>&1
    status=$?
}
train() { # train N RUN FLAGS...
    local n=$1 run=$2
    shift 2
    miles "$n" train "$run" --prompt-data "$work/prompts.jsonl" --label-key label --apply-chat-template \
        --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 8 "$@"
}
check() { # check NAME TEST...: counts a test; the log of a failed one is in $log
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $*"
        tail -n 30 "$log"
    fi
}
ended() { [ "$status" -eq 0 ]; }
same() { cmp "$work/$1" "$work/$2"; }
same_snapshot() { diff -r "$work/$1/iter_$3" "$work/$2/iter_$3"; }
# The samples of a rollout with their tokens and log-probs.
samples() { "$build/miles" inspect "$work/$1" --step 0 --tokens >"$work/$1.samples"; }
# The process of a rank: their ids do not follow the ranks.
pid_of() { # pid_of RANK RUN
    local p
    for p in $(pgrep -f "^$build/miles train .*$work/$2 "); do
        tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$p" && return
    done
}
says_once() { [ "$(grep -c "$1" "$log")" -eq 1 ]; } # one rank prints it

# --- any number of ranks: the same samples, log-probs, loss ---

for n in 1 2 4; do
    log=$work/n$n.log
    train $n n$n --num-rollout 3
    check "$n ranks train" ended
    samples n$n
    head -n 1 "$work/n$n/metrics.jsonl" >"$work/n$n.first"
    check "$n ranks draw the samples of one" same n1.samples n$n.samples
    check "$n ranks have its rollout metrics" same n1.first n$n.first
    check "$n ranks: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/n$n/metrics.jsonl")" = 3 ]
    check "$n ranks: equal log-probs" [ "$(grep -c '"train/train_rollout_logprob_abs_diff": 0,' "$work/n$n/metrics.jsonl")" = 3 ]
done
check "other ranks write logs" [ -s "$work/n4/logs/rank_3.log" ]
check "rank 0 writes one, too" grep -q 'rollout 2: generating' "$work/n4/logs/rank_0.log"
log=$work/again.log
train 2 again --num-rollout 3
check "two ranks repeat" same n2/metrics.jsonl again/metrics.jsonl
check "two ranks repeat the snapshot" same_snapshot n2 again 0000002

# --- engines of several ranks, on the ranks that train or on others ---

divided() { # divided RUN N FLAGS...: a run over N ranks draws the samples of one
    local run=$1 n=$2
    shift 2
    log=$work/$run.log
    train "$n" "$run" --num-rollout 3 --check-weight-update-equal "$@"
    check "$run: trains" ended
    samples "$run"
    head -n 1 "$work/$run/metrics.jsonl" >"$work/$run.first"
    check "$run: the samples of one rank" same n1.samples "$run.samples"
    check "$run: its rollout metrics" same n1.first "$run.first"
    check "$run: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/$run/metrics.jsonl")" = 3 ]
    check "$run: equal log-probs" [ "$(grep -c '"train/train_rollout_logprob_abs_diff": 0,' "$work/$run/metrics.jsonl")" = 3 ]
}
divided engines-of-2 4 --rollout-num-gpus-per-engine 2 --colocate --use-routing-replay
check "what all ranks say is printed once" says_once 'replay is ignored'
check "with their numbers" says_once '^miles: ranks 0-3: warning: replay is ignored: '
check "all have it in their logs" [ "$(cat "$work"/engines-of-2/logs/rank_?.log | grep -c 'warning: replay is ignored')" = 4 ]
divided apart 4 --actor-num-nodes 1 --actor-num-gpus-per-node 2 --rollout-num-gpus 2 --sglang-tp-size 2
divided stages-of-2 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sglang-tp-size 4
divided other-processes 2 --tensor-model-parallel-size 2 --rollout-num-engines 2
divided pipeline-apart 3 --pipeline-model-parallel-size 2 --rollout-num-gpus 1
check "a pipeline and an engine: the snapshot of one rank" same_snapshot n1 pipeline-apart 0000002
check "engines of two ranks: the metrics of four" same n4/metrics.jsonl engines-of-2/metrics.jsonl
check "ranks that generate: the metrics of two that train" same n2/metrics.jsonl apart/metrics.jsonl
check "ranks that generate: the snapshot of two that train" same_snapshot n2 apart 0000002
if [ "$long" ]; then
    divided dp-attention 4 --rollout-num-gpus-per-engine 4 --colocate --sglang-enable-dp-attention --sglang-dp-size 2
    check "data-parallel attention: the metrics of four" same n4/metrics.jsonl dp-attention/metrics.jsonl
    divided dp-apart 3 --rollout-num-gpus 2 --sglang-tp-size 2 --sglang-enable-dp-attention --sglang-dp-size 2
    log=$work/dp-size.log
    train 4 dp-size --num-rollout 1 --rollout-num-gpus-per-engine 4 --sglang-enable-dp-attention --sglang-dp-size 3
    check "DP groups that do not divide an engine are refused" says_once '^miles train: --sglang-dp-size is 3, and an engine has 4 ranks'
fi
log=$work/engine-size.log
train 4 engine-size --num-rollout 1 --rollout-num-gpus-per-engine 3
check "a size of engines that does not divide is refused" says_once '^miles train: --rollout-num-gpus-per-engine is 3, but 4 ranks generate: use a divisor of 4'
log=$work/engine-killed.log
(train 3 engine-killed --num-rollout 1000 --rollout-num-gpus 2 --rollout-num-gpus-per-engine 2; exit $status) &
job=$!
for _ in $(seq 600); do
    grep -q '"rollout": 1,' "$work/engine-killed/metrics.jsonl" 2>/dev/null && break
    sleep 0.1
done
kill -9 "$(pid_of 2 engine-killed)" # a rank that follows
wait $job
check "a killed rank of an engine ends the job" [ $? -ne 0 ]
check "it is named" grep -q 'process rank 2 .*signal 9' "$log"

# --- quantized weights, which every rank has as a whole ---

quantized() { # quantized RUN N FLAGS...: rollouts and training have equal log-probs
    local run=$1 n=$2
    shift 2
    log=$work/$run.log
    train "$n" "$run" --num-rollout 2 "$@"
    check "$run: trains" ended
    check "$run: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/$run/metrics.jsonl")" = 2 ]
}
quantized int4 2 --fake-quantization int4
quantized fp8 2 --fp8-format e4m3 --fp8-recipe blockwise
quantized nf4 2 --lora-rank 4 --target-modules all-linear --base-quantization nf4
quantized f32-scale 1 --fake-quantization int4-f32-scale
quantized f32-scale-apart 2 --fake-quantization int4-f32-scale --rollout-num-gpus 1 --check-weight-update-equal
check "f32 scales and an engine apart: the snapshot of one rank" same_snapshot f32-scale f32-scale-apart 0000001
quantized f32-scale-engine-of-2 2 --fake-quantization int4-f32-scale --rollout-num-gpus-per-engine 2
quantized kv-engine-of-2 2 --sglang-kv-cache-dtype int8 --rollout-num-gpus-per-engine 2
log=$work/codes-apart.log
train 2 codes-apart --num-rollout 1 --fake-quantization int4 --rollout-num-gpus 1
check "codes and an engine apart are refused" says_once '^miles train: .* need engines that read the weights of a rank that trains'

# --- weights divided over ranks: tensor parallel, FSDP ---

divided tp2dp2 4 --tensor-model-parallel-size 2 --profile
check "one trace has the spans of all ranks" tests/e2e/check_trace.py "$work/tp2dp2/trace_0.json" 4
if [ "$long" ]; then
    divided fsdp3 3 --train-backend fsdp
    divided tp2-engine-of-2 2 --tensor-model-parallel-size 2 --rollout-num-gpus-per-engine 2
    cp -r "$work/tp2dp2" "$work/tp-again"
    log=$work/tp-again.log
    train 3 tp-again --load "$work/tp-again" --num-rollout 4 --tensor-model-parallel-size 3
    check "three ranks resume what two times two saved" ended
    check "they go on without a mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/tp-again/metrics.jsonl")" = 4 ]
fi
log=$work/tp-size.log
train 3 tp-size --num-rollout 1 --tensor-model-parallel-size 2
check "a size that does not divide the ranks is refused" says_once '^miles train: --tensor-model-parallel-size 2 does not fit 3 ranks'
for n in 1 2; do
    log=$work/ppo$n.log
    train $n ppo$n --num-rollout 2 --tensor-model-parallel-size $n --advantage-estimator ppo --use-kl-loss --kl-loss-coef 0.01 --async-save
    check "$n ranks train a critic" ended
    sed -n '1p; 2s/"train.critic-grad_norm.*//p' "$work/ppo$n/metrics.jsonl" >"$work/ppo$n.first"
done
check "a divided critic has the values and the loss of one rank" same ppo1.first ppo2.first

# --- context parallel: ranks have pieces of the same samples ---

divided cp2 2 --context-parallel-size 2
if [ "$long" ]; then
    divided cp2pp2 4 --context-parallel-size 2 --pipeline-model-parallel-size 2
    divided cp2dp2 4 --context-parallel-size 2 --allgather-cp --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    cp -r "$work/cp2dp2" "$work/cp2again"
    log=$work/cp2again.log
    train 2 cp2again --load "$work/cp2again" --num-rollout 4 --context-parallel-size 2
    check "two ranks resume what four saved" ended
    check "they go on" [ -e "$work/cp2again/iter_0000003/state.json" ]
fi

# --- ranks on two hosts: here two names of one ---

skipped=0
if unshare -u true 2>/dev/null && getent hosts "$(hostname)" localhost >/dev/null; then
    cat >"$work/on_host" <<'END'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec "$@"
exec unshare -u sh -c 'hostname localhost; exec "$@"' sh "$@"
END
    chmod +x "$work/on_host"
    log=$work/hosts.log
    on_host=$work/on_host train 2 hosts --num-rollout 3 --actor-num-nodes 2 --actor-num-gpus-per-node 1
    check "engines are reached by the names of their hosts" ended
    check "two hosts give the bytes of one" same n2/metrics.jsonl hosts/metrics.jsonl
else
    skipped=1
    echo "skipped: two hosts: unshare -u is not allowed here, or the host has no name"
fi

# --- ranks divide the experts ---

"$build/tools/quickstart_make" "$work/moe" 1 qwen3_moe >/dev/null
for n in 1 2; do
    log=$work/experts$n.log
    model=$work/moe/model train $n experts$n --num-rollout 3 --expert-model-parallel-size $n
    check "experts on $n ranks: the run ends" ended
    samples experts$n
    head -n 1 "$work/experts$n/metrics.jsonl" >"$work/experts$n.first"
    check "experts on $n ranks: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/experts$n/metrics.jsonl")" = 3 ]
done
check "experts on two ranks: the samples of one" same experts1.samples experts2.samples
log=$work/etp2.log
model=$work/moe/model train 2 etp2 --num-rollout 3 --expert-tensor-parallel-size 2
check "weights of experts over two ranks: the run ends" ended
samples etp2
check "weights of experts over two ranks: the samples of one" same experts1.samples etp2.samples
check "weights of experts over two ranks: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/etp2/metrics.jsonl")" = 3 ]
check "experts on two ranks: the rollout metrics of one" same experts1.first experts2.first

# --- a pipeline: the bytes of one rank ---

log=$work/pp2.log
train 2 pp2 --num-rollout 3 --pipeline-model-parallel-size 2
check "a pipeline of two stages trains" ended
check "a pipeline has the metrics of one rank" same n1/metrics.jsonl pp2/metrics.jsonl
check "a pipeline saves the bytes of one rank" same_snapshot n1 pp2 0000002
if [ "$long" ]; then
    cp -r "$work/n1" "$work/resumed"
    log=$work/resumed.log
    train 2 resumed --load "$work/resumed" --num-rollout 4 --pipeline-model-parallel-size 2
    check "one rank saves, a pipeline resumes" ended
    log=$work/one.log
    cp -r "$work/pp2" "$work/one"
    train 1 one --load "$work/one" --num-rollout 4
    check "a pipeline saves, one rank resumes" ended
    check "both go on alike" same_snapshot resumed one 0000003
    log=$work/pp2dp2.log
    train 4 pp2dp2 --num-rollout 3 --pipeline-model-parallel-size 2
    check "two pipelines train" ended
    check "two pipelines have the bytes of two ranks" same_snapshot n2 pp2dp2 0000002
fi
log=$work/stages.log
train 2 stages --num-rollout 1 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2
check "more stages than layers are refused" says_once '^miles train: the 2 layers of this model do not fill 2 pipeline stages'

# --- gradients in shards: the bytes of a run do not depend on the number of ranks ---

for n in 1 2 4; do
    log=$work/shards$n.log
    train $n shards$n --num-rollout 3 --gradient-shards 4
    check "gradients in four shards: $n ranks train" ended
    check "gradients in four shards: $n ranks have the metrics of one" same shards1/metrics.jsonl shards$n/metrics.jsonl
    check "gradients in four shards: $n ranks have the snapshot of one" same_snapshot shards1 shards$n 0000002
done
log=$work/shards3.log
train 3 shards3 --num-rollout 1 --gradient-shards 4
check "shards that ranks do not divide are refused" says_once '^miles train: --gradient-shards 4 is not a multiple of the 3 data parallel ranks'

# --- a reward model ---

if [ "$long" ]; then
    for n in 1 2; do
        log=$work/reward$n.log
        model=tests/golden/preference/model miles $n reward-model reward$n --num-rollout 3 --gradient-shards 2 \
            --prompt-data tests/golden/preference/chats.jsonl --rollout-batch-size 4
        check "$n ranks train a reward model" ended
        check "$n ranks train the reward model of one" same_snapshot reward1 reward$n 0000002
    done
fi

# --- an adapter, on ranks that have the model or divide it ---

shards=2
[ -n "$long" ] && shards=4
lora=(--lora-rank 4 --target-modules all-linear)
for n in 1 2 ${long:+4}; do
    log=$work/lora$n.log
    train "$n" "lora$n" --num-rollout 3 --gradient-shards "$shards" "${lora[@]}"
    check "$n ranks train an adapter" ended
    check "$n ranks: the metrics of one that trains an adapter" same lora1/metrics.jsonl "lora$n/metrics.jsonl"
    check "$n ranks: its adapter" same_snapshot lora1 "lora$n" 0000002
done
samples lora1
head -n 1 "$work/lora1/metrics.jsonl" >"$work/lora1.first"
adapted() { # adapted RUN N FLAGS...: a run over N ranks draws the samples of one
    local run=$1 n=$2
    shift 2
    log=$work/$run.log
    train "$n" "$run" --num-rollout 3 --check-weight-update-equal "${lora[@]}" "$@"
    check "$run: trains" ended
    samples "$run"
    head -n 1 "$work/$run/metrics.jsonl" >"$work/$run.first"
    check "$run: the samples of one rank" same lora1.samples "$run.samples"
    check "$run: its rollout metrics" same lora1.first "$run.first"
    check "$run: no mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/$run/metrics.jsonl")" = 3 ]
    check "$run: equal log-probs" [ "$(grep -c '"train/train_rollout_logprob_abs_diff": 0,' "$work/$run/metrics.jsonl")" = 3 ]
}
adapted lora-stages 2 --pipeline-model-parallel-size 2 --sglang-tp-size 2 --gradient-shards "$shards"
check "an adapter in a pipeline: the snapshot of one rank" same_snapshot lora1 lora-stages 0000002
if [ "$long" ]; then
    adapted lora-gathered 4 --tensor-model-parallel-size 2 --colocate --sglang-tp-size 4
    adapted lora-fsdp 2 --train-backend fsdp
    adapted lora-pieces 2 --context-parallel-size 2
    adapted lora-mesh 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --rollout-num-gpus-per-engine 2
    adapted lora-apart 4 --tensor-model-parallel-size 2 --actor-num-nodes 1 --actor-num-gpus-per-node 2 \
        --rollout-num-gpus 2 --sglang-tp-size 2
    adapted lora-processes 2 --pipeline-model-parallel-size 2 --rollout-num-engines 2
    adapted lora-files 2 --tensor-model-parallel-size 2 --rollout-num-engines 1 --update-weight-transfer-mode disk
    apart=()
    for n in 1 3; do # one rank; a pipeline of two, and an engine
        log=$work/lora-async$n.log
        miles $n train-async lora-async$n --prompt-data "$work/prompts.jsonl" --label-key label --apply-chat-template \
            --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 8 \
            --num-rollout 3 --use-tis "${lora[@]}" "${apart[@]}"
        apart=(--pipeline-model-parallel-size 2 --actor-num-nodes 1 --actor-num-gpus-per-node 2 --rollout-num-gpus 1)
        check "$n ranks train an adapter asynchronously" ended
        check "$n ranks: the asynchronous metrics of one" same lora-async1/metrics.jsonl lora-async$n/metrics.jsonl
        check "$n ranks: the asynchronous adapter of one" same_snapshot lora-async1 lora-async$n 0000002
    done
    for n in 1 2; do # what four ranks saved
        cp -r "$work/lora-mesh" "$work/lora-from$n"
        log=$work/lora-from$n.log
        train $n lora-from$n --load "$work/lora-from$n" --num-rollout 4 "${lora[@]}" --tensor-model-parallel-size $n
        check "four ranks save an adapter, $n resume" ended
        check "$n ranks: resumed without a mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/lora-from$n/metrics.jsonl")" = 4 ]
    done
fi

# --- snapshots ---

for n in 1 2; do
    cp -r "$work/n4" "$work/from$n"
    log=$work/from$n.log
    train $n from$n --load "$work/from$n" --num-rollout 4
    check "four ranks save, $n resume" ended
    check "$n ranks go on" [ -e "$work/from$n/iter_0000003/state.json" ]
    check "$n ranks: resumed without a mismatch" [ "$(grep -c '"rollout/forward_logp_max_diff": 0}' "$work/from$n/metrics.jsonl")" = 4 ]
done

# --- a rank is killed: the job ends, and resumes as if nothing had happened ---

log=$work/killed.log
(train 3 killed --num-rollout 1000 --save-interval 2; exit $status) &
job=$!
for _ in $(seq 600); do
    [ -e "$work/killed/iter_0000003/state.json" ] && break
    sleep 0.1
done
victim=$(pgrep -f "^$build/miles train .*$work/killed" | sed -n "$((RANDOM % 3 + 1))p")
kill -9 "$victim"
wait $job
check "a killed rank ends the job" [ $? -ne 0 ]
saved=$(cat "$work/killed/latest_checkpointed_iteration.txt")
train 3 killed --load "$work/killed" --num-rollout $((saved + 3)) --save-interval 2
check "it resumes" ended
log=$work/undisturbed.log
train 3 undisturbed --num-rollout $((saved + 3)) --save-interval 2
last=$(printf %07d $((saved + 2)))
check "the metrics of an undisturbed run" same killed/metrics.jsonl undisturbed/metrics.jsonl
check "the snapshot of an undisturbed run" same_snapshot killed undisturbed "$last"

# --- a request to stop: rank 0 decides, all ranks save and end ---

log=$work/stopped.log
(train 2 stopped --num-rollout 1000; exit $status) &
job=$!
for _ in $(seq 600); do
    grep -q '"rollout": 1,' "$work/stopped/metrics.jsonl" 2>/dev/null && break
    sleep 0.1
done
kill -USR1 "$(pgrep -f "^mpirun .*$work/stopped" | head -n 1)"
wait $job
check "a request to stop ends the job well" [ $? -eq 0 ]
check "what it has done is saved" grep -q "stopped after rollout $(cat "$work/stopped/latest_checkpointed_iteration.txt");" "$log"

# --- a rank hangs: the others name it ---

log=$work/hung.log
(train 2 hung --num-rollout 1000 --distributed-timeout-minutes 0.05; exit $status) &
job=$!
for _ in $(seq 600); do
    grep -q '"rollout": 1,' "$work/hung/metrics.jsonl" 2>/dev/null && break
    sleep 0.1
done
victim=$(pid_of 1 hung)
kill -STOP "$victim"
wait $job
check "a silent rank ends the job" [ $? -eq 3 ]
check "it is named" says_once '^miles train: .*rank 1 .*did not answer within 3 s'

# --- a rank runs, but its loop does not go on: the others say which, and what it does ---

cat >"$work/stall.py" <<EOF
import os, time
def log(rollout_id, args, samples, metrics, seconds):
    if rollout_id == 1 and os.path.exists("$work/stall"):
        time.sleep(1000)
EOF
hook=(--num-rollout 3 --custom-rollout-log-function-path "$work/stall.py:log" --save-interval 1)
touch "$work/stall"
log=$work/stalled.log
train 3 stalled "${hook[@]}" --distributed-timeout-minutes 0.05 --rank-stall-minutes 0.07
check "a rank that does not go on ends the job" [ "$status" -eq 3 ]
check "the ranks that wait for it say so" [ "$(grep -l 'rank [12] waited for rank 0 in bcast over .*, rank 0 was in no collective for [0-9.]* s (rollout)$' "$work"/stalled/logs/rank_?.log | wc -l)" = 2 ]
check "one prints why the job ends" says_once '^miles train: rank [12] gave up: .*rank 0 was in no collective for [0-9.]* s (rollout), longer than 4.2 s (--rank-stall-minutes)'
check "all know" [ "$(grep -l 'rank [12] gave up: .*rank 0 was in no collective' "$work"/stalled/logs/rank_[12].log | wc -l)" = 2 ]
rm "$work/stall"
train 3 stalled "${hook[@]}" --load "$work/stalled"
check "it resumes after a stall" ended
train 3 unstalled "${hook[@]}"
check "a stall: the metrics of an undisturbed run" same stalled/metrics.jsonl unstalled/metrics.jsonl
check "a stall: the snapshot of an undisturbed run" same_snapshot stalled unstalled 0000002

# --- messages: one sentence, by rank 0 ---

log=$work/size.log
train 2 size --num-rollout 1 --actor-num-nodes 1 --actor-num-gpus-per-node 8
check "a job of the wrong size fails" [ "$status" -eq 2 ]
check "it says how to start it" says_once '^miles train: .*are 8 ranks, but the job has 2: start it with mpirun -n 8'
log=$work/alone.log
train 1 alone --num-rollout 1 --context-parallel-size 2
check "a mesh of more ranks than there are is refused" says_once '^miles train: --context-parallel-size 2.* 1 rank'
log=$work/rule.log
train 2 rule --num-rollout 1 --enable-witness
check "what needs one rank is refused" says_once '^miles train: --enable-witness needs one rank'
mkdir -p "$work/rank1/logs/rank_1.log" # where rank 1 makes a file
log=$work/rank1.log
train 2 rank1 --num-rollout 1
check "a rank that fails ends the job" [ "$status" -ne 0 ]
check "rank 0 says what happened" says_once '^miles train: rank 1 failed: .*rank_1.log: cannot create'
log=$work/usage.log
train 3 usage --no-such-flag
check "a wrong flag is reported once" says_once 'no-such-flag'

# --- other commands ---

for n in 1 2; do
    log=$work/sft$n.log
    miles $n sft sft$n --prompt-data "$work/lessons.jsonl" --rollout-batch-size 16 --num-rollout 2
    check "$n ranks fine-tune" ended
    sed -n '1p; 2s/"train.grad_norm.*//p' "$work/sft$n/metrics.jsonl" >"$work/sft$n.first"
    log=$work/async$n.log
    miles $n train-async async$n --prompt-data "$work/prompts.jsonl" --label-key label --apply-chat-template \
        --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 8 --num-rollout 3 --use-tis
    check "$n ranks train asynchronously" ended
    samples async$n
done
for n in 1 2; do
    log=$work/eval$n
    timeout --kill-after=5 100 mpirun --oversubscribe --allow-run-as-root -n $n "$build/miles" eval \
        --hf-checkpoint "$work/model" --eval-prompt-data unseen "$work/eval.jsonl" --input-key messages \
        --label-key label --apply-chat-template --rm-type math --eval-max-response-len 6 --threads 2 >"$log"
    check "$n ranks evaluate" [ $? -eq 0 ]
done
check "evaluation: the scores of one rank" same eval1 eval2
log=$work/eval-engine
timeout --kill-after=5 100 mpirun --oversubscribe --allow-run-as-root -n 2 "$build/miles" eval \
    --hf-checkpoint "$work/model" --eval-prompt-data unseen "$work/eval.jsonl" --input-key messages --label-key label \
    --apply-chat-template --rm-type math --eval-max-response-len 6 --threads 2 --rollout-num-gpus-per-engine 2 >"$log"
check "evaluation: an engine of two ranks" same eval1 eval-engine
log=$work/eval-sizes
timeout --kill-after=5 100 mpirun --oversubscribe --allow-run-as-root -n 2 "$build/miles" eval \
    --hf-checkpoint "$work/model" --eval-prompt-data unseen "$work/eval.jsonl" --input-key messages --label-key label \
    --apply-chat-template --rm-type math --eval-max-response-len 6 --threads 2 --tensor-model-parallel-size 2 \
    --rollout-num-gpus-per-engine 2 >"$log"
check "evaluation: with the sizes of training" same eval1 eval-sizes
score() { # score OUT MODEL N FLAGS...: miles score on N ranks
    local out=$1 model=tests/golden/data/$2 n=$3
    shift 3
    log=$work/$out.log
    timeout --kill-after=5 100 mpirun --oversubscribe --allow-run-as-root -n "$n" "$build/miles" score \
        --hf-checkpoint "$model" --input "$model/golden.safetensors" --output "$work/$out" --threads 2 \
        --logits --entropy "$@" >"$log" 2>&1
    status=$?
}
close() { tests/e2e/compare_scores.py "$work/$1" "$work/$2" >>"$log"; }
score score1 qwen3_moe 1 --grads
check "one rank scores" ended
score score-tp2pp2 qwen3_moe 4 --grads --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
check "score: weights and layers over four ranks" close score1 score-tp2pp2
score score-pp2 qwen3_moe 2 --grads --pipeline-model-parallel-size 2
check "score: a pipeline writes the bytes of one rank" same score1 score-pp2
score score-ep2 qwen3_moe 2 --grads --expert-model-parallel-size 2
check "score: experts over two ranks" close score1 score-ep2
if [ "$long" ]; then
    adapted=(--hf-checkpoint tests/golden/adapters/models/qwen3_moe
        --lora-adapter-path tests/golden/adapters/lora/qwen3_moe_shared_outer --grads)
    score score-lora qwen3_moe 1 "${adapted[@]}"
    check "one rank scores an adapter" ended
    score score-lora-mesh qwen3_moe 8 "${adapted[@]}" --tensor-model-parallel-size 2 \
        --pipeline-model-parallel-size 2 --expert-model-parallel-size 4
    check "score: an adapter on eight ranks" close score-lora score-lora-mesh
    score score-lora-list qwen3_moe 2 "${adapted[@]:0:2}" --lora-paths \
        a=tests/golden/adapters/lora/qwen3_moe_shared_outer
    check "score: several adapters need one rank" says_once '^miles score: --lora-paths: several ranks score'
fi
score score-one qwen3_next 1
score score-cp2 qwen3_next 4 --context-parallel-size 2
check "score: pieces of sequences on two times two ranks" same score-one score-cp2
score score-size qwen3_moe 3 --tensor-model-parallel-size 2
check "score: a size that does not divide the ranks is refused" says_once '^miles score: --tensor-model-parallel-size 2 does not fit 3 ranks'
check "score: it writes nothing" [ ! -e "$work/score-size" ]
score score-rule qwen3_moe 2 --batching tokenwise
check "score: what needs one rank is refused" says_once '^miles score: --batching tokenwise needs one rank'
log=$work/fully.log
miles 2 train-async fully --prompt-data "$work/prompts.jsonl" --label-key label --apply-chat-template \
    --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 32 \
    --num-rollout 3 --use-tis --fully-async
check "two ranks train fully asynchronously" ended
check "fine-tuning: the loss of one rank" same sft1.first sft2.first
log=$work/sftcp.log
miles 2 sft sftcp --prompt-data "$work/lessons.jsonl" --rollout-batch-size 16 --num-rollout 2 --context-parallel-size 2
check "two ranks fine-tune on pieces of samples" ended
sed -n '1p; 2s/"train.grad_norm.*//p' "$work/sftcp/metrics.jsonl" >"$work/sftcp.first"
check "fine-tuning on pieces: the loss of one rank" same sft1.first sftcp.first

log=$work/sftpp.log
miles 2 sft sftpp --prompt-data "$work/lessons.jsonl" --rollout-batch-size 16 --num-rollout 2 --pipeline-model-parallel-size 2
check "a pipeline fine-tunes" ended
check "fine-tuning in stages: the metrics of one rank" same sft1/metrics.jsonl sftpp/metrics.jsonl
check "train-async: the samples of one rank" same async1.samples async2.samples

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
