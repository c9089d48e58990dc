#!/usr/bin/env python3
"""One GRPO step of an adapter on a model with the shape of SmolLM2-135M, and the memory that it takes, with
the base in bf16 and quantized.

    tests/e2e/lora_memory.py --miles build/release/miles
"""
import argparse
import json
import os
import subprocess
import tempfile

from random_llama import Shape, write_model

LIMIT = 2 << 30
SAVED = 120 << 20  # 106 million weights in 4.5 bits instead of 16 are 152 MB less


def step(miles, d, name, flags):
    """The most memory that the step has taken.  Engine and trainer read the same base."""
    run = f"{d}/run-{name}"
    words = [miles, "train", "--hf-checkpoint", d + "/model", "--prompt-data", d + "/data.jsonl", "--input-key", "text",
             "--label-key", "label", "--rm-type", "random", "--num-rollout", "1", "--rollout-batch-size", "4",
             "--n-samples-per-prompt", "4", "--rollout-max-response-len", "64", "--rollout-temperature", "1",
             "--advantage-estimator", "grpo", "--use-kl-loss", "--kl-loss-coef", "0.01", "--kl-loss-type",
             "low_var_kl", "--lr", "1e-4", "--use-dynamic-batch-size", "--max-tokens-per-gpu", "512", "--lora-rank",
             "16", "--lora-alpha", "32", "--target-modules", "all-linear", "--save", run] + flags
    child = subprocess.Popen(words)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, words
    assert os.path.exists(run + "/iter_0000000/adapter_model.safetensors")
    with open(run + "/metrics.jsonl") as f:
        lines = [json.loads(line) for line in f]
    assert any(line.get("rollout/forward_logp_max_diff") == 0 for line in lines), lines
    return usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    miles = parser.parse_args().miles
    with tempfile.TemporaryDirectory(prefix="miles-lora-") as d:
        os.mkdir(d + "/model")
        write_model(d + "/model", Shape(hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, inner=1536, vocab=49152))
        with open(d + "/data.jsonl", "w") as f:
            for i in range(4):
                f.write(json.dumps({"text": f"what is {i} + {i}? " * 8, "label": str(2 * i)}) + "\n")
        plain = step(miles, d, "bf16", [])
        quantized = step(miles, d, "nf4", ["--base-quantization", "nf4"])
    print(f"{plain / 2 ** 20:.0f} MiB, {quantized / 2 ** 20:.0f} MiB with NF4")
    assert plain <= LIMIT, plain
    assert plain - quantized > SAVED, (plain, quantized)
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
