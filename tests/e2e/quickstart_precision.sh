#!/usr/bin/env bash
# quickstart_precision.sh BUILD SEED.. - the quickstart learns in low precision as in bf16.
#
# For each seed, miles train runs from the same fine-tuned model with --dtype bf16 alone and in each of
# PRECISIONS, by default with FP8 products and with quantization-aware training in INT4; on a GPU with wgmma
# "fp8-backward fp8-hybrid" are FP8 products of gradients, too.  Prints the accuracies on unseen problems.
# The means must be within 3 points of that of bf16, and rollout and training log-probs equal to the bit in
# every rollout.
set -euo pipefail

build=$1
shift
read -ra precisions <<< "bf16 ${PRECISIONS:-fp8 int4}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

flags_of() {
  case $1 in
    bf16) echo "--dtype bf16" ;;
    fp8) echo "--dtype bf16 --fp8-format e4m3 --fp8-recipe blockwise" ;;
    fp8-backward) echo "--dtype bf16 --fp8-format e4m3 --fp8-recipe blockwise --fp8-backward" ;;
    fp8-hybrid) echo "--dtype bf16 --fp8-format hybrid --fp8-recipe blockwise --fp8-backward" ;;
    int4) echo "--dtype bf16 --fake-quantization int4" ;;
    *) echo "there is no precision $1" >&2 && exit 2 ;;
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

line() { # line SEED ACCURACY..
  printf '%-6s' "$1"
  shift
  printf ' %12s' "$@"
  echo
}

line seed "${precisions[@]}"
for seed in "$@"; do
  row=()
  for precision in "${precisions[@]}"; do
    accuracy=$(train "$seed" "$precision" "$([ "$precision" = bf16 ] || echo "$dir/$seed-bf16")")
    row+=("$accuracy")
  done
  line "$seed" "${row[@]}" | tee -a "$dir/table"
done
awk '{ for (i = 2; i <= NF; i++) sum[i] += $i; n = NF }
END {
  printf "%-6s", "mean"
  for (i = 2; i <= n; i++) {
    printf " %12.1f", sum[i] / NR
    bad = bad || sum[i] == 0 || sum[i] < sum[2] - 3 * NR
  }
  print ""
  exit bad
}' "$dir/table"
