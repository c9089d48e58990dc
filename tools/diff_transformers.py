#!/usr/bin/env python3
"""diff_transformers.py --miles MILES - transformers and gguf-py read what `miles convert` writes.

Small models are converted to each dtype.  transformers loads the output, dequantizes it on the CPU and
must give the logits that miles computes from the same files; gguf-py must read every tensor of a GGUF
file to the same values, and transformers its logits, with the same next tokens."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers
from compressed_tensors.quantization import disable_quantization
from safetensors.numpy import load_file, save_file

BOUND = 1e-5  # of the largest logit, as in tests/golden
LENGTH = 48


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit("%s: %s" % (" ".join(words), done.stdout + done.stderr))


def tokens_of(root, model):
    with open(model + "/config.json") as f:
        config = json.load(f)
    ids = numpy.random.default_rng(1).integers(0, config["vocab_size"], LENGTH).astype(numpy.int32)
    save_file({"tokens.0": ids}, root + "/tokens.safetensors")
    return torch.from_numpy(ids.astype(numpy.int64))[None]


def ours(miles, root, model):
    out = root + "/logits.safetensors"
    run(miles, "score", "--hf-checkpoint", model, "--input", root + "/tokens.safetensors", "--output", out, "--logits",
        "--dtype", "f32")
    return load_file(out)["logits.0"]


def theirs(model, ids, **how):
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager",
                                                               **how)
    if "gguf_file" not in how:  # those of a GGUF file are f32
        loaded = loaded.float()
    loaded.apply(disable_quantization)  # of activations
    with torch.no_grad():
        return loaded(ids).logits[0].numpy()


def compare(what, got, want):
    off = numpy.abs(got - want).max() / numpy.abs(want).max()
    print("%-32s off by %.2g" % (what, off), flush=True)
    if not off <= BOUND or (got.argmax(-1) != want.argmax(-1)).any():
        sys.exit(what + ": other logits")


def dequantize(dtype):
    """How transformers is told to dequantize on loading."""
    if dtype in ("fp8", "fp8-ue8m0"):
        return {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}
    if dtype == "mxfp4":
        return {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    if dtype != "bf16":
        return {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    return {}


def widen_scales(model):
    """compressed-tensors (0.20) computes code times scale in the type of the scale, bf16, and rounds the
    product; with the same scales in f32 it does not."""
    path = model + "/model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(".weight_scale"):
            tensors[name] = tensor.float()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def check(miles, source, dtype):
    with tempfile.TemporaryDirectory() as root:
        out = root + "/out"
        run(miles, "convert", "--hf-checkpoint", source, "--save-hf", out, "--dtype", dtype)
        ids = tokens_of(root, out)
        if dtype.startswith("int4"):
            widen_scales(out)
        compare("%s %s" % (os.path.basename(source), dtype), theirs(out, ids, **dequantize(dtype)), ours(miles, root, out))


def make_wide(root):
    """A model whose matrices consist of whole blocks of 128x128, which transformers needs."""
    torch.manual_seed(1)
    config = transformers.Qwen3Config(vocab_size=83, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=64, initializer_range=0.1,
                                      architectures=["Qwen3ForCausalLM"])
    transformers.Qwen3ForCausalLM(config).save_pretrained(root + "/wide")
    return root + "/wide"


def check_gguf(miles, source, dtype):
    """source: a GGUF file, which has a tokenizer."""
    import gguf

    with tempfile.TemporaryDirectory() as root:
        model, out = root + "/model", root + "/out.gguf"
        run(miles, "convert", "--hf-checkpoint", source, "--save-hf", model, "--dtype", "f32")
        run(miles, "convert", "--hf-checkpoint", model, "--save-gguf", out, "--dtype", dtype)
        for t in gguf.GGUFReader(out).tensors:
            values = gguf.quants.dequantize(t.data, t.tensor_type)
            assert numpy.isfinite(values).all() and values.size == t.n_elements, t.name
        ids = tokens_of(root, model)
        compare("%s gguf %s" % (os.path.basename(source), dtype), theirs(root, ids, gguf_file="out.gguf"),
                ours(miles, root, out))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    miles = p.parse_args().miles
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("qwen3", "qwen3_moe", "llama", "gemma3_text", "deepseek_v3", "gpt_oss"):
        check(miles, "tests/golden/data/" + name, "bf16")
    check(miles, "tests/golden/quant/mxfp4_gpt_oss", "mxfp4")
    with tempfile.TemporaryDirectory() as root:
        wide = make_wide(root)
        for dtype in ("fp8", "fp8-row", "fp8-tensor", "int4", "int4-g128"):
            check(miles, wide, dtype)
    for dtype in ("bf16", "f16", "q8_0"):
        check_gguf(miles, "tests/golden/formats/gguf/llama_k-q4_K_M.gguf", dtype)


if __name__ == "__main__":
    main()
