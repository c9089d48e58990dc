#!/usr/bin/env python3
"""diff_torch_dump.py --build BUILD - torch.load reads what --save-debug-rollout-data x.pt writes.

The same run is recorded twice, to .pt and to .jsonl.zst (a run repeats to the bit), and both must have
the same values; the .pt file written by torch again must be read by miles and train to the same
weights.  The model has experts, so that samples have routing records."""
import argparse
import base64
import json
import math
import os
import subprocess
import tempfile

import numpy
import torch


def train(build, root, save, *words):
    command = [build + "/miles", "train", "--hf-checkpoint", root + "/model", "--num-rollout", "2",
               "--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--lr", "1e-3", "--device", "cpu", "--save",
               root + "/" + save, "--use-rollout-routing-replay", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with open("%s/%s/iter_0000001/model.safetensors" % (root, save), "rb") as f:
        return f.read()


def same(ours, line):
    for key, want in line.items():
        got = ours[key]
        if key.startswith("rollout_routed"):
            want = numpy.frombuffer(base64.b64decode(want), dtype=numpy.int32)
            assert got.dtype == numpy.int32 and (got.reshape(-1) == want).all(), key
        elif key.endswith("_log_probs"):
            assert all(isinstance(x, float) for x in got), key
            assert all(x == y or (y is None and math.isnan(x)) for x, y in zip(got, want, strict=True)), key
        else:
            assert got == want, key


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    build = os.path.abspath(p.parse_args().build)
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([build + "/tools/quickstart_make", root, "1", "qwen3_moe"], check=True)
        rollout = ["--prompt-data", root + "/prompts.jsonl", "--input-key", "messages", "--label-key", "label",
                   "--apply-chat-template", "--rm-type", "math", "--rollout-max-response-len", "8"]
        first = train(build, root, "a", *rollout, "--save-debug-rollout-data", root + "/{rollout_id}.pt")
        train(build, root, "b", *rollout, "--save-debug-rollout-data", root + "/{rollout_id}.jsonl.zst")
        for i in range(2):
            dump = torch.load("%s/%d.pt" % (root, i), weights_only=False)
            text = subprocess.run(["zstd", "-qdc", "%s/%d.jsonl.zst" % (root, i)], check=True, capture_output=True).stdout
            lines = [json.loads(line) for line in text.splitlines()]
            assert dump["rollout_id"] == i and len(dump["samples"]) == len(lines) == 8
            for ours, line in zip(dump["samples"], lines, strict=True):
                same(ours, line)
            assert all(s["rollout_routed_experts"].ndim == 2 for s in dump["samples"])
            torch.save(dump, "%s/again%d.pt" % (root, i))
        again = train(build, root, "c", "--load-debug-rollout-data", root + "/again{rollout_id}.pt")
        assert again == first, "the recording trains to other weights"
    print("torch.load reads recorded rollouts, and miles reads those of torch.save")


main()
