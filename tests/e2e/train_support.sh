#!/usr/bin/env bash
# train_support.sh BUILD - sampling-support replay: with top-p and top-k, rollout and training agree
# to the bit in every mode of execution, and what must not change the bytes does not.
set -euo pipefail

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$build/tools/quickstart_make" "$dir" 1
"$build/miles" sft --hf-checkpoint "$dir/model" --prompt-data "$dir/lessons.jsonl" \
  --input-key messages --rollout-shuffle --rollout-seed 1 --rollout-batch-size 32 \
  --num-rollout 12 --lr 3e-3 --lr-decay-style constant --adam-beta2 0.98 --weight-decay 0 \
  --no-recompute-loss-function --save "$dir/sft" > "$dir/log"
start=$dir/sft/iter_0000011
rounds=3

# run NAME COMMAND FLAG...: in $dir/NAME; before: what starts the program, mpirun for instance
before=()
run() {
  local name=$1 command=$2
  shift 2
  "${before[@]}" "$build/miles" "$command" --hf-checkpoint "$start" --save "$dir/$name" --load "$dir/$name" \
    --prompt-data "$dir/prompts.jsonl" --input-key messages --label-key label \
    --apply-chat-template --rollout-shuffle --rollout-seed 1 --num-rollout "$rounds" \
    --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 8 \
    --num-steps-per-rollout 2 --lr 5e-4 --lr-decay-style constant --adam-beta2 0.98 \
    --weight-decay 0 --use-dynamic-batch-size --max-tokens-per-gpu 4096 \
    --no-recompute-loss-function --rm-type deterministic_random --rollout-top-p 0.7 "$@" \
    > "$dir/$name.log" 2>&1 || {
    cat "$dir/$name.log"
    echo "FAIL $name"
    exit 1
  }
  echo "ok   $name"
}

# agrees NAME [N]: all rounds, or N, whose tokens are of the weights they train
agrees() {
  local equal
  equal=$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$dir/$1/metrics.jsonl" || true)
  [ "$equal" -ge "${2:-$rounds}" ] && return 0
  echo "FAIL $1: rollout and training agree in $equal rounds"
  exit 1
}

same() { # same NAME OTHER
  cmp "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" &&
    diff -r "$dir/$1/iter_0000002" "$dir/$2/iter_0000002"
}

run plain train --threads 1
agrees plain
run threads train --threads 2
same plain threads
run drafts train --speculative-algorithm NGRAM --speculative-num-draft-tokens 3
diff -r "$dir/plain/iter_0000002" "$dir/drafts/iter_0000002"
run engines train --rollout-num-engines 2 # masks come as replies of /generate
same plain engines

# A run that is killed once it has saved goes on with the same bytes.
run killed train --save-interval 1 > /dev/null &
while kill -0 $! 2> /dev/null && [ ! -e "$dir/killed/latest_checkpointed_iteration.txt" ]; do sleep 0.1; done
pkill -9 -P $! 2> /dev/null || true
wait $! 2> /dev/null || true
run killed train --save-interval 1
same plain killed

# Recordings carry the supports: training on them gives the same weights.
run recorded train --save-debug-rollout-data "$dir/record_{rollout_id}.pt"
run replayed train --load-debug-rollout-data "$dir/record_{rollout_id}.pt"
cmp "$dir/recorded/iter_0000002/model.safetensors" "$dir/replayed/iter_0000002/model.safetensors"

run kl train --use-kl-loss --kl-loss-coef 0.1 --ref-load "$start" --entropy-coef 0.01
agrees kl
grep -m 1 -q '"train/kl_loss": 0,' "$dir/kl/metrics.jsonl" # the reference has the same weights
run penalty train --advantage-estimator reinforce_plus_plus --normalize-advantages --kl-coef 0.1 --ref-load "$start"
agrees penalty
run distil train --use-opd --opd-type megatron --opd-teacher-load "$start"
agrees distil
grep -m 1 -q '"train/opd_reverse_kl": 0,' "$dir/distil/metrics.jsonl"
run topk train --rollout-top-k 4 --rollout-top-p 1
agrees topk
run lora train --lora-rank 4 --target-modules all-linear
agrees lora
run partial train --partial-rollout --over-sampling-batch-size 8
agrees partial 1
run ahead train-async --use-tis
run flow train-async --use-tis --fully-async --max-weight-staleness 2

if command -v mpirun > /dev/null && [ -e "$build/libmiles_mpi.so" ]; then
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  before=(mpirun --oversubscribe --allow-run-as-root -n 2)
  run dp2 train
  agrees dp2
  run tp2 train --tensor-model-parallel-size 2
  agrees tp2
  run pp2 train --pipeline-model-parallel-size 2
  agrees pp2
  run cp2 train --context-parallel-size 2
  agrees cp2
else
  echo "skipped: ranks, as mpirun or libmiles_mpi.so is missing"
fi
