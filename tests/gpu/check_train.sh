#!/usr/bin/env bash
# check_train.sh BUILD WORK [DEVICE] - a few rounds on the GPU with tiny models.
#
# GRPO with a mixture of experts: those that the rollout chose are replayed, and the profile has
# the ops of both, by the GPU's clock.  PPO: the critic's values are f32 over bf16 layers; memory in
# turns, or optimizer state in a file, gives the same bytes.  GRPO with adapters, of experts too, and of a
# quantized base; with a KV cache in 8 bits; FP8 products, also of gradients, and INT4 quantization-aware training; with top-p and top-k, over sampling
# supports.  In every round the log-probs of training are those of the rollout, except with
# --rollout-quantization.
set -euo pipefail
build=$1
work=$2/train
device=${3:-cuda}
rm -rf "$work"
mkdir -p "$work"
dtype=(--dtype bf16)

train() { # train NAME FAMILY FLAG...
    local at="$work/$1" equal
    "$build/tools/quickstart_make" "$at" 1 "$2"
    shift 2
    "$build/miles" train --device "$device" "${dtype[@]}" --hf-checkpoint "$at/model" --save "$at/run" \
        --prompt-data "$at/prompts.jsonl" --input-key messages --label-key label \
        --apply-chat-template --rm-type deterministic_random --num-rollout 3 --rollout-batch-size 8 \
        --n-samples-per-prompt 4 --rollout-max-response-len 8 --lr 1e-4 --use-dynamic-batch-size \
        --max-tokens-per-gpu 1024 "$@" > "$at/log" || { tail -n 5 "$at/log"; return 1; }
    equal=$(grep -c '"rollout/forward_logp_max_diff": 0[,}]' "$at/run/metrics.jsonl" || true)
    echo "$*: rollout and training agree in $equal of 3 rounds"
    [ "$equal" = "${agreeing:-3}" ]
}

train moe qwen3_moe --advantage-estimator grpo --use-rollout-routing-replay --profile
train lora qwen3 --advantage-estimator grpo --lora-rank 8 --target-modules all-linear
train lora-moe qwen3_moe --advantage-estimator grpo --lora-rank 4 --target-modules all-linear
dtype=() # quantized layers, others as the checkpoint has them
train qlora qwen3 --advantage-estimator grpo --lora-rank 8 --target-modules all-linear --base-quantization int4
train qlora-moe qwen3_moe --advantage-estimator grpo --lora-rank 4 --target-modules all-linear --base-quantization nf4
dtype=(--dtype bf16)
train kv qwen3 --advantage-estimator grpo --sglang-kv-cache-dtype fp8_e4m3
train kv-int8 qwen3_next --advantage-estimator grpo --sglang-kv-cache-dtype int8
fp8=(--advantage-estimator grpo --fp8-format e4m3 --fp8-recipe)
train fp8 qwen3 "${fp8[@]}" blockwise --use-kl-loss --kl-loss-coef 0.01
train fp8-moe qwen3_moe "${fp8[@]}" blockwise --use-rollout-routing-replay
train mxfp8 qwen3 "${fp8[@]}" mxfp8
train fp8-back qwen3 "${fp8[@]}" blockwise --fp8-backward
train fp8-hybrid qwen3_moe --advantage-estimator grpo --fp8-format hybrid --fp8-recipe blockwise --fp8-backward
train qat qwen3 --advantage-estimator grpo --fake-quantization int4
train qat-moe qwen3_moe --advantage-estimator grpo --fake-quantization int4
train qat-f32-scale qwen3 --advantage-estimator grpo --fake-quantization int4-f32-scale --use-kl-loss --kl-loss-coef 0.01
train qat-f32-scale-moe qwen3_moe --advantage-estimator grpo --fake-quantization int4-g128-f32-scale
agreeing=0 train coarse qwen3 --advantage-estimator grpo --rollout-quantization int4 --use-tis
train support qwen3 --advantage-estimator grpo --rollout-top-p 0.7 --rollout-top-k 20 --use-kl-loss --kl-loss-coef 0.01
train ppo qwen3 --advantage-estimator ppo
train turns qwen3 --advantage-estimator ppo --offload
train file qwen3 --advantage-estimator ppo --optimizer-offload-dir "$work"
train host qwen3 --advantage-estimator ppo --optimizer-cpu-offload
for other in turns file host; do
    cmp "$work/ppo/run/metrics.jsonl" "$work/$other/run/metrics.jsonl"
    cmp "$work/ppo/run/iter_0000002/model.safetensors" "$work/$other/run/iter_0000002/model.safetensors"
done
if ! grep -q '"train/critic-applied": 1' "$work/ppo/run/metrics.jsonl"; then
    echo "the critic of PPO learnt nothing"
    exit 1
fi
python3 - "$work/moe/run/trace_0.json" << 'PY'
import json, sys

spans = [e for e in json.load(open(sys.argv[1])) if e["ph"] == "X"]
for lane, name in ((2, "moe-route"), (2, "attn backward"), (2, "optimizer"), (3, "attn"), (3, "draw")):
    found = [e["dur"] for e in spans if e["tid"] == lane and e["name"] == name]
    assert found and sum(found) > 0, f"no {name} in lane {lane} of the profile"
first, last = [e for e in spans if e["name"] == "iteration"][::2]
ops = [e for e in spans if e["tid"] > 1]
slack = 1000  # microseconds by which the clocks of GPU and host may differ
for e in ops:
    inside = first["ts"] - slack < e["ts"] and e["ts"] + e["dur"] < last["ts"] + last["dur"] + slack
    assert inside, f"{e['name']} is outside of all rounds"
print(f"{len(ops)} ops in the profile")
PY
