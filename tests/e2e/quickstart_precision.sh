#!/usr/bin/env bash
# quickstart_precision.sh BUILD SEED.. - the quickstart learns in unified FP8 and in INT4 as in bf16.
#
# For each seed, miles train runs from the same fine-tuned model with --dtype bf16 alone, with FP8
# products and with quantization-aware training in INT4.  Prints the accuracies on unseen problems.
# The means of FP8 and INT4 must be within 3 points of that of bf16, and rollout and training
# log-probs equal to the bit in every rollout.
set -euo pipefail

build=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

flags_of() {
  case $1 in
    bf16) echo "--dtype bf16" ;;
    fp8) echo "--dtype bf16 --fp8-format e4m3 --fp8-recipe blockwise" ;;
    int4) echo "--dtype bf16 --fake-quantization int4" ;;
  esac
}

# check_bits RUN - fails where a rollout has other log-probs than training.
check_bits() {
  local rounds equal
  rounds=$(grep -c '"rollout/raw_reward"' "$1/rl/metrics.jsonl")
  equal=$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$1/rl/metrics.jsonl")
  [ "$rounds" = "$equal" ] || {
    echo "$1: rollout and training agree in $equal of $rounds rounds"
    exit 1
  }
}

# train SEED PRECISION [FROM] - prints the accuracy after miles train, in percent.
train() {
  local run=$dir/$1-$2 flags
  read -ra flags <<< "$(flags_of "$2")"
  MILES_BUILD=$build FROM=${3:-} recipes/quickstart.sh "$run" "$1" qwen3 "${flags[@]}" > "$run.log"
  check_bits "$run"
  sed -n 's/^accuracy.* \([0-9.]*\)% after miles train.*/\1/p' "$run.log"
}

printf '%-6s %8s %8s %8s\n' seed bf16 fp8 int4
for seed in "$@"; do
  bf16=$(train "$seed" bf16)
  fp8=$(train "$seed" fp8 "$dir/$seed-bf16")
  int4=$(train "$seed" int4 "$dir/$seed-bf16")
  printf '%-6s %8s %8s %8s\n' "$seed" "$bf16" "$fp8" "$int4" | tee -a "$dir/table"
done
awk '{ bf16 += $2; fp8 += $3; int4 += $4 }
END {
  printf "%-6s %8.1f %8.1f %8.1f\n", "mean", bf16 / NR, fp8 / NR, int4 / NR
  if (bf16 == 0 || fp8 < bf16 - 3 * NR || int4 < bf16 - 3 * NR) exit 1
}' "$dir/table"
