#!/usr/bin/env python3
"""One GRPO step of an adapter on a model with the shape of SmolLM2-135M, and the memory that it takes, with
the base in bf16 and quantized.

    tests/e2e/lora_memory.py --miles build/release/miles
"""
import argparse
import json
import os
import random
import struct
import subprocess
import tempfile

from serve_setup import write_tokenizer

LIMIT = 2 << 30
SAVED = 120 << 20  # 106 million weights in 4.5 bits instead of 16 are 152 MB less
HIDDEN, LAYERS, HEADS, KV, INNER, VOCAB = 576, 30, 9, 3, 1536, 49152


def tensors():
    dim = HIDDEN // HEADS
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [HIDDEN]
        yield at + "post_attention_layernorm.weight", [HIDDEN]
        for name, rows in (("q", HEADS * dim), ("k", KV * dim), ("v", KV * dim)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, HIDDEN]
        yield at + "self_attn.o_proj.weight", [HIDDEN, HEADS * dim]
        yield at + "mlp.gate_proj.weight", [INNER, HIDDEN]
        yield at + "mlp.up_proj.weight", [INNER, HIDDEN]
        yield at + "mlp.down_proj.weight", [HIDDEN, INNER]


def make_model(path):
    """Random bf16 weights: a block of them, repeated."""
    draw = random.Random(1)
    block = b"".join(struct.pack("<f", draw.gauss(0, 0.03))[2:] for _ in range(99991))
    ones = struct.pack("<f", 1.0)[2:]
    header, begin = {}, 0
    for name, shape in tensors():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, begin + n]}
        begin += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors():
            n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            source = ones if len(shape) == 1 else block
            f.write((source * (n // len(source) + 1))[:n])
    with open(path + "/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
                   "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
                   "num_attention_heads": HEADS, "num_key_value_heads": KV, "hidden_act": "silu",
                   "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192,
                   "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": 2}, f)
    write_tokenizer(path)


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
        make_model(d + "/model")
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
