#!/usr/bin/env python3
"""Two recipes of tinker-cookbook, sl_loop and rl_loop, unmodified, against `miles tinker`, without a network.

    tools/with-python.sh tinker,tinker_cookbook,datasets,torch,math_verify tests/e2e/tinker_recipes.py --miles build/release/miles

Tokenizer and data sets are in a Hugging Face cache that this script fills.  The model is a table of what follows
which byte: it answers every question with one of four numbers in a box, and the recipe teaches it the right one.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import datasets

from serve_setup import write_safetensors
from tinker_client import Service

NAME = "Qwen/Qwen3-8B"  # whose renderer and tokenizer the recipes look up
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
N = 272  # of tokens, and of the hidden state


def byte_chars():
    """The characters by which byte-level BPE names the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {}, 256
    for b in range(256):
        if b in plain:
            chars[b] = chr(b)
        else:
            chars[b], extra = chr(extra), extra + 1
    return chars


def write_tokenizer(path):
    vocab = {c: b for b, c in byte_chars().items()} | {s: 256 + i for i, s in enumerate(SPECIAL)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    with open(path + "/tokenizer.json", "w") as f:
        json.dump({"version": "1.0", "added_tokens": [dict(flags, id=vocab[s], content=s) for s in SPECIAL],
                   "pre_tokenizer": level, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}, f)
    with open(path + "/tokenizer_config.json", "w") as f:
        json.dump({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}, f)


def write_model(path):
    rng = random.Random(1)
    chain = [ord(c) for c in "\n\\boxed{"]
    follows = {(b, a) for a, b in zip(chain, chain[1:])} | {(ord(d), ord("{")) for d in "1234"}
    follows |= {(ord("}"), ord(d)) for d in "1234"} | {(257, ord("}"))}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": N, "hidden_size": N,
              "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
              "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
              "max_position_embeddings": 1024, "tie_word_embeddings": False, "eos_token_id": 257}
    layer = "model.layers.0."
    shapes = {f"self_attn.{x}_proj.weight": [64, N] for x in "qkv"} | {"self_attn.o_proj.weight": [N, 64]}
    shapes |= {"mlp.gate_proj.weight": [64, N], "mlp.up_proj.weight": [64, N], "mlp.down_proj.weight": [N, 64]}
    tensors = {layer + k: (v, [rng.gauss(0, 0.02) for _ in range(v[0] * v[1])]) for k, v in shapes.items()}
    for name in "model.norm.weight", layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight":
        tensors[name] = ([N], [1.0] * N)
    tensors["model.embed_tokens.weight"] = ([N, N], [float(i == j) for i in range(N) for j in range(N)])
    tensors["lm_head.weight"] = ([N, N], [((i, j) in follows) + rng.gauss(0, 0.03) for i in range(N) for j in range(N)])
    write_safetensors(path + "/model.safetensors", tensors)
    with open(path + "/config.json", "w") as f:
        json.dump(config, f)
    write_tokenizer(path)


def cache_tokenizer(home):
    top, revision = home + "/hub/models--" + NAME.replace("/", "--"), "0" * 40
    os.makedirs(f"{top}/snapshots/{revision}")
    os.makedirs(top + "/refs")
    with open(top + "/refs/main", "w") as f:
        f.write(revision)
    write_tokenizer(f"{top}/snapshots/{revision}")
    with open(f"{top}/snapshots/{revision}/config.json", "w") as f:
        json.dump({"model_type": "qwen3", "vocab_size": N}, f)


def cache_dataset(home, repository, config, rows):
    """As the datasets library leaves it after a download."""
    owner, name = repository.split("/")
    dir = f"{home}/datasets/{owner}___{name}/{config}/0.0.0/{'0' * 40}"
    os.makedirs(dir)
    for split in "train", "test":
        data = datasets.Dataset.from_list(rows)
        with datasets.arrow_writer.ArrowWriter(path=f"{dir}/{name}-{split}.arrow", features=data.features) as w:
            for row in rows:
                w.write(row)
            w.finalize()
    splits = {s: {"name": s, "num_bytes": 1, "num_examples": len(rows), "dataset_name": name} for s in ("train", "test")}
    info = {"builder_name": "parquet", "dataset_name": name, "config_name": config, "version": "0.0.0",
            "features": data.features.to_dict(), "splits": splits}
    info["version"] = {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0}
    with open(dir + "/dataset_info.json", "w") as f:
        json.dump(info, f)


def fill_cache(home):
    cache_tokenizer(home)
    talk = [("what is %d" % i, "the number %d" % i) for i in range(40)]
    cache_dataset(home, "HuggingFaceH4/no_robots", "default",
                  [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in talk])
    cache_dataset(home, "openai/gsm8k", "main",
                  [{"question": q, "answer": "it is two #### 2"} for q, _ in talk])


def run(recipe, service, dir, **settings):
    """Runs a recipe in a process of its own; the metrics of its steps."""
    log = f"{dir}/{recipe}"
    env = os.environ | {"HF_HOME": dir + "/home", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                        "TINKER_API_KEY": "tml-test", "TINKER_TELEMETRY": "0"}
    settings |= {"base_url": service.url, "log_path": log, "model_name": NAME}
    done = subprocess.run([sys.executable, "-m", "tinker_cookbook.recipes." + recipe,
                           *(f"{k}={v}" for k, v in settings.items())], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    with open(log + "/metrics.jsonl") as f:
        metrics = [json.loads(line) for line in f]
    with open(log + "/checkpoints.jsonl") as f:
        final = [json.loads(line) for line in f][-1]
    assert final["name"] == "final" and final["state_path"] and final["sampler_path"], final
    return metrics


def test_recipes(service, dir):
    steps = run("sl_loop", service, dir, batch_size=4, max_steps=6, lora_rank=8, learning_rate=0.02, save_every=4)
    nll = [m["train_mean_nll"] for m in steps if "train_mean_nll" in m]
    assert len(nll) == 6 and nll[-1] < 0.7 * nll[0], nll
    steps = run("rl_loop", service, dir, batch_size=4, group_size=8, max_steps=8, lora_rank=8, learning_rate=0.002,
                max_tokens=16)
    reward = [m["reward/total"] for m in steps if "reward/total" in m]
    assert len(reward) == 8 and sum(reward[-2:]) > sum(reward[:2]) + 0.2, reward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="miles-recipes-") as dir:
        os.mkdir(dir + "/model")
        write_model(dir + "/model")
        fill_cache(dir + "/home")
        with Service(args.miles, dir, "--served-model-name", NAME) as service:
            test_recipes(service, dir)
            service.stop()
    print("2 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
