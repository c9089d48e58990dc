#!/usr/bin/env bash
# train_matrix.sh BUILD [NAME...] - the table of docs/ALGORITHMS.md: every objective, optimizer,
# preference loss and reward, killed and resumed, with an adapter, in bf16, and over ranks.
#
# A run that kill -9 ends once it has saved, and that is then started again, leaves the metrics and
# the last snapshot of an undisturbed one.  With an adapter, in bf16 and over ranks rollout and
# training agree to the bit.  What the table says is refused is refused before the start.
set -euo pipefail

build=$1
shift
only=" $* "
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

"$build/tools/quickstart_make" "$dir" 1
"$build/miles" sft --hf-checkpoint "$dir/model" --prompt-data "$dir/lessons.jsonl" \
  --input-key messages --rollout-shuffle --rollout-seed 1 --rollout-batch-size 32 \
  --num-rollout 4 --lr 3e-3 --lr-decay-style constant --adam-beta2 0.98 --weight-decay 0 \
  --no-recompute-loss-function --save "$dir/sft" > "$dir/log"
"$build/miles" convert --hf-checkpoint "$dir/sft/iter_0000003" --save-hf "$dir/half" --dtype bf16 > "$dir/log"
pairs=tests/golden/preference
echo "Grade {response} to {prompt}. Score:" > "$dir/judge.txt"

ranks=0
if command -v mpirun > /dev/null && [ -e "$build/libmiles_mpi.so" ]; then
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  ranks=1
else
  echo "skipped: ranks, as mpirun or libmiles_mpi.so is missing"
fi

train="train --prompt-data $dir/prompts.jsonl --input-key messages --label-key label
  --apply-chat-template --rollout-shuffle --n-samples-per-prompt 4 --rollout-max-response-len 8
  --num-steps-per-rollout 2 --adam-beta2 0.98 --use-dynamic-batch-size --max-tokens-per-gpu 4096
  --no-recompute-loss-function --rm-type deterministic_random"
dpo="dpo --prompt-data $pairs/texts.jsonl --beta 0.5 --preference-loss"

# A row: a name and the flags.
rows=(
  "grpo $train"
  "gspo $train --advantage-estimator gspo"
  "rloo $train --advantage-estimator rloo"
  "pass_at_k $train --advantage-estimator pass_at_k --pass-at-k 2"
  "reinforce $train --advantage-estimator reinforce_plus_plus --normalize-advantages"
  "baseline $train --advantage-estimator reinforce_plus_plus_baseline --normalize-advantages"
  "ppo $train --advantage-estimator ppo --critic-lr 1e-3"
  "cispo $train --loss-type cispo_loss"
  "sapo $train --loss-type sapo_loss"
  "gmpo $train --loss-type gmpo_loss"
  "vespo $train --loss-type vespo_loss"
  "clip_cov $train --loss-type clip_cov_loss --clip-cov-ratio 0.1 --clip-cov-lb 0 --clip-cov-ub 100"
  "kl_cov $train --loss-type kl_cov_loss --kl-cov-ratio 0.1"
  "luspo $train --advantage-estimator gspo --custom-pg-loss-reducer-function-path luspo"
  "overlong $train --overlong-buffer-len 4 --overlong-penalty-factor 0.5 --length-reward-coef 0.2"
  "nucleus $train --rollout-top-p 0.7"
  "mixed $train --prompt-data $dir/prompts.jsonl@[0:40],$dir/prompts.jsonl@[40:80] --prompt-data-weights 3 1"
  "hard $train --prompt-sampling hard --replay-hard-prompts 0.25 --replay-hard-pass-rate 0.5"
  "difficulty $train --prompt-sampling difficulty --prompt-data-weights 1 1 --prompt-data $dir/prompts.jsonl@[0:40],$dir/prompts.jsonl@[40:80]"
  "sgd $train --optimizer sgd"
  "muon $train --optimizer muon"
  "adafactor $train --optimizer adafactor"
  "adam8 $train --use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
  "adam16 $train --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
  "dpo $dpo dpo"
  "hinge $dpo hinge"
  "ipo $dpo ipo"
  "simpo $dpo simpo"
  "orpo $dpo orpo"
  "kto dpo --prompt-data $pairs/single.jsonl --preference-loss kto"
  "reward_pairs reward-model --prompt-data $pairs/texts.jsonl"
  "reward_labels reward-model --prompt-data tests/golden/reward_model/scores.jsonl --reward-model-loss labels"
  "judge $train --rm-type judge --judge-model-path $pairs/model --judge-prompt-path $dir/judge.txt --judge-score-regex [0-9]
    --judge-temperature 1.5 --judge-max-tokens 60"
  "reward_model $train --rm-type reward_model --reward-model-path tests/golden/reward_model/model"
)

# run NAME FLAGS...: before: what starts the program
before=()
run() {
  local name=$1
  shift
  "${before[@]}" "$build/miles" "$@" --save "$dir/$name" --load "$dir/$name" --num-rollout 3 --rollout-seed 1 \
    --rollout-batch-size 4 --lr 5e-4 --lr-decay-style constant --weight-decay 0 > "$dir/$name.log" 2>&1
}

fail() {
  echo "FAIL $1"
  tail -n 5 "$dir/${1%% *}.log"
  failed=$((failed + 1))
}

# agrees NAME: in the rounds that train the actor; miles dpo has no rollouts
agrees() {
  grep -q '"rollout/forward_logp_max_diff"' "$dir/$1/metrics.jsonl" || return 0
  ! grep '"rollout/forward_logp_max_diff"' "$dir/$1/metrics.jsonl" | grep -v '"rollout/forward_logp_max_diff": 0[,}]'
}

same() {
  cmp "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" && diff -r "$dir/$1/iter_0000002" "$dir/$2/iter_0000002"
}

# killed NAME FLAGS...: a run that ends by kill -9 after its first snapshot, and goes on
killed() {
  local name=$1 pid
  shift
  run "$name" "$@" --save-interval 1 &
  pid=$!
  while kill -0 $pid 2> /dev/null && [ ! -e "$dir/$name/latest_checkpointed_iteration.txt" ]; do sleep 0.05; done
  pkill -9 -P $pid 2> /dev/null || true
  wait $pid 2> /dev/null || true
  run "$name" "$@" --save-interval 1
}

trains() { # trains NAME FLAGS...: a run whose rollouts and training agree
  if ! run "$@" || ! agrees "$1"; then fail "$1"; fi
}

row() {
  local name=$1 start model=$dir/sft/iter_0000003 half=$dir/half n
  shift
  [ "$1" != train ] && model=$pairs/model && half=$pairs/model
  start=("$@" --hf-checkpoint "$model")
  before=()
  if ! run "$name" "${start[@]}" || ! agrees "$name"; then fail "$name" && return; fi
  if ! killed "$name.killed" "${start[@]}" 2> /dev/null || ! same "$name" "$name.killed"; then fail "$name.killed"; fi
  trains "$name.lora" "${start[@]}" --lora-rank 4 --target-modules all-linear
  trains "$name.bf16" "$@" --hf-checkpoint "$half" --dtype bf16
  for n in "" tensor-model pipeline-model context; do
    [ $ranks = 1 ] || continue
    case $name.$n in muon.tensor-model | adafactor.tensor-model) continue ;; esac # refused, below
    before=(mpirun --oversubscribe --allow-run-as-root -n 2)
    trains "$name.${n:-data}" "${start[@]}" ${n:+"--$n-parallel-size" 2}
  done
  rm -rf "$dir/$name".*
  echo "done $name"
}

for r in "${rows[@]}"; do
  read -r -d '' -a words <<< "$r" || true
  [ -z "${only// /}" ] || [[ $only == *" ${words[0]} "* ]] || continue
  row "${words[@]}"
done

# --- what is refused before the start ---

refused() { # refused WHAT FLAGS...
  local what=$1
  shift
  if "$build/miles" "$@" --hf-checkpoint "$dir/sft/iter_0000003" --save "$dir/refused" --num-rollout 1 --rollout-batch-size 4 \
    --lr 1e-3 > "$dir/refused.log" 2>&1 || [ -e "$dir/refused/metrics.jsonl" ]; then
    :
  fi
  grep -q -- "$what" "$dir/refused.log" || fail "refused $what"
}
read -r -d '' -a words <<< "$train" || true
refused "--lora-rank needs --target-modules" "${words[@]}" --lora-rank 4
refused "--exp-avg-dtype and --exp-avg-sq-dtype are for --optimizer adam" "${words[@]}" --optimizer muon \
  --use-precision-aware-optimizer --exp-avg-dtype bf16

[ $ranks = 0 ] || for optimizer in muon adafactor; do
  before=(mpirun --oversubscribe --allow-run-as-root -n 2)
  if run "$optimizer.whole" "${words[@]}" --hf-checkpoint "$dir/sft/iter_0000003" --optimizer $optimizer \
    --tensor-model-parallel-size 2 || [ -e "$dir/$optimizer.whole/metrics.jsonl" ]; then
    fail "$optimizer.whole"
  fi
done

echo "$failed failed"
[ "$failed" = 0 ]
