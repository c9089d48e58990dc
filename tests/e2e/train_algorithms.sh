#!/usr/bin/env bash
# train_algorithms.sh BUILD short|long - every algorithm, from one start.
#
# long: what miles sft left at about a third of unseen sums gains at least 20 points in 60
# rounds of each algorithm; distillation, without any reward, closes half of the gap to its
# teacher.  The modes of execution do as well, those whose samples are older with --use-tis, and
# with what they are trained on bounded in age.  short: two rounds of each from hardly trained
# weights, with one thread and with two, end in the same bytes.  In both, rollout and training
# agree to the bit in every round whose samples are of the weights it trains, and no two rows
# end alike: with two steps a round, ratios and clips matter.
set -euo pipefail

build=$1
length=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Hardly trained weights are never right: rewards that differ all the same.
case $length in
short) sft_rounds=4 rounds=2 warmup=0 prompts=4 reward="--rm-type deterministic_random" ;;
long) sft_rounds=500 rounds=60 warmup=5 prompts=32 reward="--rm-type math" ;;
*) echo "short or long?" && exit 2 ;;
esac

# A row: a name, a command, and the flags that make the algorithm.  A row may use what an
# earlier one left in $dir/NAME.
rows=(
  "grpo train $reward --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28"
  "gspo train $reward --advantage-estimator gspo --eps-clip 3e-3 --eps-clip-high 4e-3"
  "reinforce train $reward --advantage-estimator reinforce_plus_plus
    --normalize-advantages"
  "baseline train $reward --advantage-estimator reinforce_plus_plus_baseline
    --normalize-advantages"
  "ppo train $reward --advantage-estimator ppo --critic-lr 1e-3
    --num-critic-only-steps 1 --normalize-advantages"
  "distil train --rm-type zero --use-opd --opd-type megatron --opd-teacher-load $dir/grpo"
)

grpo="$reward --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28"
modes=(
  "dynamic train $grpo --over-sampling-batch-size 48
    --dynamic-sampling-filter-path check_reward_nonzero_std"
  "partial train $grpo --over-sampling-batch-size 48 --partial-rollout"
  "ahead train-async $grpo --use-tis"
  "flow train-async $grpo --use-tis --fully-async --max-weight-staleness 2"
)

[ "$length" = long ] && rows+=("${modes[@]}")
[ "$length" = short ] && rows+=("nucleus train $grpo --rollout-top-p 0.7")

"$build/tools/quickstart_make" "$dir" 1
"$build/miles" sft --hf-checkpoint "$dir/model" --prompt-data "$dir/lessons.jsonl" \
  --input-key messages --rollout-shuffle --rollout-seed 1 --rollout-batch-size 32 \
  --num-rollout "$sft_rounds" --lr 3e-3 --lr-decay-style linear --lr-warmup-iters 2 \
  --adam-beta2 0.98 --weight-decay 0 --no-recompute-loss-function --save "$dir/sft" > "$dir/log"
start=$dir/sft/iter_$(printf %07d $((sft_rounds - 1)))

# run NAME ROW FLAG...: what was said goes to $dir/log.
run() {
  local save=$dir/$1 words
  read -r -d '' -a words <<< "$2" || true
  shift 2
  "$build/miles" "${words[1]}" --hf-checkpoint "$start" --save "$save" \
    --prompt-data "$dir/prompts.jsonl" --input-key messages --label-key label \
    --apply-chat-template --rollout-shuffle --rollout-seed 1 --num-rollout "$rounds" \
    --rollout-batch-size "$prompts" --n-samples-per-prompt 8 --rollout-max-response-len 8 \
    --num-steps-per-rollout 2 --lr 5e-4 --lr-decay-style constant \
    --lr-warmup-iters "$warmup" --adam-beta2 0.98 --weight-decay 0 --use-dynamic-batch-size \
    --max-tokens-per-gpu 4096 --no-recompute-loss-function "${words[@]:2}" "$@" > "$dir/log" || {
    cat "$dir/log"
    return 1
  }
}

# agree NAME: in every round that trains the actor, where its samples are of one version
agree() {
  local trained equal least=$rounds
  case $1 in partial | ahead | flow) return 0 ;; ppo) least=$((rounds - 1)) ;; esac
  trained=$(grep -c '"rollout/forward_logp_max_diff": ' "$dir/$1/metrics.jsonl")
  equal=$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$dir/$1/metrics.jsonl")
  [ "$trained" = "$equal" ] && [ "$trained" -ge "$least" ] && return 0
  echo "$1: rollout and training agree in $equal of $trained rounds, of $least"
  return 1
}

# fresh NAME: every round says how old its tokens are, and none is too old
fresh() {
  local figure=stale_tokens said
  case $1 in ahead) ;; flow) figure=fully_async/trained_max_staleness ;; *) return 0 ;; esac
  said=$(sed -n "s|.*\"rollout/$figure\": \([0-9]*\).*|\1|p" "$dir/$1/metrics.jsonl")
  awk -v name="$1" -v figure="$figure" -v rounds="$rounds" '
    $1 > most { most = $1 }
    $1 > 0 { old++ }
    END {
      print name ": " figure " is above 0 in " old " of " NR " rounds, at most " most
      exit NR != rounds || old == 0 || (name == "flow" && most > 2)
    }' <<< "$said"
}

# alone NAME: no row before it has left the same weights
declare -A left=()
alone() {
  local sum
  sum=$(sha256sum < "$(last "$1")/model.safetensors")
  [ -z "${left[$sum]:-}" ] || {
    echo "$1: its weights are those of ${left[$sum]}"
    return 1
  }
  left[$sum]=$1
}

# last NAME: its last snapshot
last() {
  printf "%s/iter_%07d" "$dir/$1" $((rounds - 1))
}

# accuracy CHECKPOINT: right answers to unseen problems, in tenths of a percent
accuracy() {
  "$build/miles" eval --hf-checkpoint "$1" --eval-prompt-data unseen "$dir/unseen.jsonl" \
    --input-key messages --label-key label --apply-chat-template --rm-type math \
    --rollout-max-response-len 8 | grep -o '"eval/unseen": [0-9.e-]*' |
    awk '{ printf "%d\n", $2 * 1000 + 0.5 }'
}

short_row() {
  run "$1" "$2" --threads 1 && run "$1-again" "$2" --threads 2 && agree "$1" &&
    cmp "$dir/$1/metrics.jsonl" "$dir/$1-again/metrics.jsonl" &&
    diff -r "$(last "$1")" "$(last "$1-again")" && alone "$1"
}

long_row() {
  local after want=$((before + 200))
  run "$1" "$2" && agree "$1" && fresh "$1" && alone "$1" || return 1
  after=$(accuracy "$(last "$1")")
  [ "$1" = grpo ] && teacher=$after
  [ "$1" = distil ] && want=$(((before + teacher) / 2))
  echo "$1: from $before to $after of 1000"
  [ "$after" -ge "$want" ] && return 0
  echo "$1: $want were wanted"
  return 1
}

[ "$length" = long ] && before=$(accuracy "$start")
failed=0
for row in "${rows[@]}"; do
  if ! "${length}_row" "${row%% *}" "$row"; then
    echo "FAIL ${row%% *}"
    failed=$((failed + 1))
  fi
done
echo "$((${#rows[@]} - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
