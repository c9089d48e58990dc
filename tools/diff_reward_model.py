#!/usr/bin/env python3
"""diff_reward_model.py --build BUILD - transformers loads the reward models that miles trains.

A model that `miles reward-model` made from a language model must load as a sequence classification model with no tensor
missing or left over, and give the rewards of `miles reward`; in batches with padding, too."""
import argparse
import json
import subprocess
import sys
import tempfile

import torch
import transformers

GOLDEN = "tests/golden/preference"
BOUND = 1e-5


def run(words, stdin=None):
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit("%s: %s" % (" ".join(words), done.stdout + done.stderr))
    return done.stdout


def rows():
    with open(GOLDEN + "/chats.jsonl") as f:
        return [json.loads(line) for line in f]


def ours(miles, model):
    samples = [{"prompt": row["prompt"], "response": row[key][0]["content"]} for row in rows() for key in ("chosen", "rejected")]
    out = run([miles, "reward", "--rm-type", "reward_model", "--reward-model-path", model],
              "".join(json.dumps(s) + "\n" for s in samples))
    return torch.tensor([json.loads(line)["reward"] for line in out.splitlines()])


def theirs(model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32,
                                                                                   output_loading_info=True)
    if any(info.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit("transformers: %s" % info)
    ids = [tokenizer.apply_chat_template(row["prompt"] + row[key], return_dict=True)["input_ids"]
           for row in rows() for key in ("chosen", "rejected")]
    batch = tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")
    with torch.no_grad():
        return loaded.eval()(**batch).logits.squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    miles = parser.parse_args().build + "/miles"
    with tempfile.TemporaryDirectory() as root:
        run([miles, "reward-model", "--hf-checkpoint", GOLDEN + "/model", "--prompt-data", GOLDEN + "/chats.jsonl",
             "--rollout-batch-size", "4", "--num-rollout", "3", "--lr", "2e-3", "--save", root + "/run"])
        model = root + "/run/iter_0000002"
        got, want = ours(miles, model), theirs(model)
    off = ((got - want).abs().max() / want.abs().max()).item()
    print("rewards off by %.2g" % off)
    if not off <= BOUND or want.std() < 1e-3:
        sys.exit("other rewards")
    print("1 passed, 0 failed, 0 skipped")


main()
