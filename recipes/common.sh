# shellcheck shell=bash
# common.sh - what the recipes share: GRPO on GSM8K or DAPO.  A recipe sets
#
#   name    the model's directory in models/ and the run's in runs/
#   task    gsm8k or dapo
#   ARGS    optional: its own flags
#   RESPONSE, TOKENS, MEMORY  optional: tokens of a response, tokens of a micro-batch, part of a GPU's
#           memory that engines use
#   LAYOUT  optional: parallel sizes and the placement of engines, for several GPUs
#   RANKS   with LAYOUT: processes of the run, one for each GPU; RANKS=1 runs without the layout
#
# and sources this file with its arguments.  MODEL, DATA, TEST, RUN and INPUT_KEY name others than the
# recipe's; MILES is the program, LAUNCH the command that starts RANKS processes of it.  COMMAND=plan
# predicts memory and speed of the layout from the config.json of MODEL alone (miles plan --help).
# shellcheck disable=SC2154
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
miles=${MILES:-$here/miles}
model=${MODEL:-models/$name}
run=${RUN:-runs/$name}

case $task in
gsm8k)
  data=${DATA:-data/gsm8k/train.jsonl}
  test=${TEST:-data/gsm8k/test.jsonl}
  TASK_ARGS=(
    --rm-type math
    --num-rollout 200
    --rollout-max-response-len "${RESPONSE:-1024}"
    --max-tokens-per-gpu "${TOKENS:-8192}"
    --eval-prompt-data gsm8k_test "$test"
    --n-samples-per-eval-prompt 1
    --sglang-max-running-requests 64
  )
  ;;
dapo)
  data=${DATA:-data/dapo/train.jsonl}
  test=${TEST:-data/aime-2024/test.jsonl}
  TASK_ARGS=(
    --rm-type dapo
    --num-rollout 1000
    --rollout-max-response-len "${RESPONSE:-8192}"
    --max-tokens-per-gpu "${TOKENS:-9216}"
    --eval-prompt-data aime2024 "$test"
    --n-samples-per-eval-prompt 16 # of 30 problems
    --sglang-max-running-requests 128
  )
  ;;
esac

COMMON_ARGS=(
  --hf-checkpoint "$model"
  --ref-load "$model"
  --load "$run"
  --save "$run"
  --save-interval 20
  --keep-last 3

  --prompt-data "$data"
  --input-key "${INPUT_KEY:-messages}"
  --label-key label
  --apply-chat-template
  --rollout-shuffle
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-temperature 1
  --global-batch-size 256
  --eval-interval 20
  --eval-top-p 0.7

  --advantage-estimator grpo
  --use-kl-loss
  --kl-loss-coef 0.001
  --kl-loss-type low_var_kl
  --entropy-coef 0
  --eps-clip 0.2
  --eps-clip-high 0.28

  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.98

  --use-dynamic-batch-size
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  --sglang-mem-fraction-static "${MEMORY:-0.3}"
  --colocate
  --dtype bf16
)

[ "${RANKS:-1}" -gt 1 ] || LAYOUT=()
command=("$miles" "${COMMAND:-train}" "${COMMON_ARGS[@]}" "${TASK_ARGS[@]}" "${LAYOUT[@]}"
  ${ARGS[@]+"${ARGS[@]}"} "$@")

# A plan and a run of one process need no launcher.
if [ "${RANKS:-1}" -gt 1 ] && [ -z "${COMMAND:-}" ] && [[ " $* " != *" --dry-run "* ]]; then
  read -ra launch <<< "${LAUNCH:-mpirun -n $RANKS}"
  exec "${launch[@]}" "${command[@]}"
fi
exec "${command[@]}"
