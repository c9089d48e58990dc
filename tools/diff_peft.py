#!/usr/bin/env python3
"""diff_peft.py --build BUILD - PEFT reads the adapters that miles trains, and miles those of PEFT.

An adapter made by PEFT with random matrices must give the logits of PEFT in `miles score`; one that `miles sft`
trains must load in PEFT with no tensor missing or left over, and give the logits of `miles score`."""
import argparse
import glob
import json
import subprocess
import sys
import tempfile

import numpy
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

BOUND = 1e-5  # of the largest logit, as in tests/golden


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit("%s: %s" % (" ".join(words), done.stdout + done.stderr))


def model_of(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def theirs(model, ids):
    model.eval()
    with torch.no_grad():
        return model(ids).logits[0].numpy()


def ours(miles, root, model, adapter):
    run(miles, "score", "--hf-checkpoint", model, "--lora-adapter-path", adapter, "--input", root + "/tokens.safetensors",
        "--output", root + "/out.safetensors", "--logits", "--dtype", "f32")
    return load_file(root + "/out.safetensors")["logits.0"]


def tokens_of(root, model):
    with open(model + "/config.json") as f:
        vocab = json.load(f)["vocab_size"]
    ids = numpy.random.default_rng(1).integers(0, vocab, 40).astype(numpy.int32)
    save_file({"tokens.0": ids}, root + "/tokens.safetensors")
    return torch.from_numpy(ids.astype(numpy.int64))[None]


def compare(what, got, want, base):
    off = numpy.abs(got - want).max() / numpy.abs(want).max()
    print("%-44s off by %.2g" % (what, off), flush=True)
    if not off <= BOUND:
        sys.exit(what + ": other logits")
    if numpy.allclose(want, base, atol=1e-3):
        sys.exit(what + ": the adapter changes nothing, so that this compares nothing")


def read(miles, name, **how):
    """PEFT's adapter in miles."""
    model = "tests/golden/data/" + name
    with tempfile.TemporaryDirectory() as root:
        ids = tokens_of(root, model)
        plain = model_of(model)
        base = theirs(plain, ids)
        torch.manual_seed(1)
        with_adapter = peft.get_peft_model(plain, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **how))
        with_adapter.save_pretrained(root + "/adapter")
        compare("%s, by PEFT, %s" % (name, how.get("target_modules")), ours(miles, root, model, root + "/adapter"),
                theirs(with_adapter, ids), base)


def write(build, *flags):
    """miles' adapter in PEFT, of the quickstart's model."""
    with tempfile.TemporaryDirectory() as root:
        run(build + "/tools/quickstart_make", root, "1")
        model = root + "/model"
        run(build + "/miles", "sft", "--hf-checkpoint", model, "--prompt-data", root + "/lessons.jsonl", "--input-key", "messages",
            "--rollout-batch-size", "16", "--num-rollout", "6", "--lr", "1e-2", "--save", root + "/run", "--lora-rank", "4",
            "--lora-alpha", "8", *flags)
        adapter = sorted(glob.glob(root + "/run/iter_*"))[-1]
        ids = tokens_of(root, model)
        plain = model_of(model)
        base = theirs(plain, ids)
        loaded = peft.PeftModel.from_pretrained(plain, adapter)
        mine = {k for k in load_file(adapter + "/adapter_model.safetensors")}
        known = set(peft.get_peft_model_state_dict(loaded))
        if mine != known:
            sys.exit("PEFT knows other tensors: %s" % sorted(mine ^ known)[:4])
        compare("quickstart, by miles %s" % " ".join(flags), theirs(loaded, ids), ours(build + "/miles", root, model, adapter), base)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    build = p.parse_args().build
    miles = build + "/miles"
    transformers.logging.set_verbosity_error()
    read(miles, "llama", r=4, lora_alpha=8, target_modules="all-linear")
    read(miles, "qwen3", r=8, lora_alpha=3, target_modules=["q_proj", "v_proj"], use_rslora=True)
    read(miles, "qwen2", r=3, lora_alpha=6, target_modules=r".*layers\.1\..*(up|down|o)_proj", rank_pattern={"up_proj": 5})
    read(miles, "gemma3_text", r=4, lora_alpha=8, target_modules="all-linear", exclude_modules=["k_proj"])
    write(build, "--target-modules", "all-linear")
    write(build, "--target-modules", "q_proj,o_proj,down_proj", "--lora-type", "canonical_lora")
    print("6 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
