#!/usr/bin/env python3
"""train_mtp.py --build DIR [--long] [--device NAME] - a multi-token prediction layer that is trained online.

The same run is made without speculation and without training of the layer, and with both.  Samples
and checkpoints are equal byte for byte, except the layer's weights and the state of its optimizer,
which change.  A run that is continued from a snapshot saves the bytes of one that was not
interrupted.  With --long, the drafts of the layer are accepted more often than not at the end."""
import argparse
import filecmp
import json
import os
import struct
import subprocess
import sys
import tempfile

LAYER = "model.layers.2."  # after the trunk's two
SPECULATIVE = ["--sglang-speculative-algorithm", "EAGLE", "--sglang-speculative-num-steps", "2"]
TRAINED = ["--mtp-num-layers", "1", "--enable-mtp-training"]


def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {k: data[slice(*v["data_offsets"])] for k, v in header.items() if k != "__metadata__"}


def miles(build, *args):
    done = subprocess.run([build + "/miles", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit("miles %s\n%s%s" % (" ".join(map(str, args)), done.stdout[-2000:], done.stderr[-4000:]))


class Runs:
    def __init__(self, args, root):
        self.build, self.root, self.long, self.device = args.build, root, args.long, args.device
        self.n_sft, self.n_rollout = (200, 40) if args.long else (30, 4)
        subprocess.run([args.build + "/tools/quickstart_make", root, "1", "glm4_moe"], check=True)

    def sft(self):
        """The trunk learns the form of answers first."""
        miles(self.build, "sft", "--hf-checkpoint", self.root + "/model", "--prompt-data", self.root + "/lessons.jsonl",
              "--input-key", "messages", "--rollout-batch-size", 32, "--num-rollout", self.n_sft, "--lr", "3e-3",
              "--lr-decay-style", "linear", "--lr-warmup-iters", 10, "--weight-decay", 0, "--save", self.root + "/sft",
              "--device", self.device)
        self.model = "%s/sft/iter_%07d" % (self.root, self.n_sft - 1)

    def train(self, name, *more, rollouts=None):
        n = rollouts or self.n_rollout
        miles(self.build, "train", "--hf-checkpoint", self.model, "--prompt-data", self.root + "/prompts.jsonl",
              "--input-key", "messages", "--label-key", "label", "--apply-chat-template", "--rm-type", "math",
              "--num-rollout", n, "--rollout-batch-size", 16, "--n-samples-per-prompt", 4, "--global-batch-size", 32,
              "--rollout-max-response-len", 8, "--sglang-max-running-requests", 8, "--lr", "5e-4", "--lr-decay-style", "constant", "--weight-decay", 0,
              "--use-dynamic-batch-size", "--max-tokens-per-gpu", 1024, "--save-debug-rollout-data",
              "%s/%s-rounds/{rollout_id}.jsonl.zst" % (self.root, name), "--save", "%s/%s" % (self.root, name),
              "--device", self.device, *more)
        return "%s/%s/iter_%07d" % (self.root, name, n - 1)

    def metrics(self, name, key):
        with open("%s/%s/metrics.jsonl" % (self.root, name)) as f:
            rows = [json.loads(line) for line in f]
        return [row[key] for row in rows if key in row]


def check_equal_runs(runs, plain, both):
    for i in range(runs.n_rollout):
        files = ["%s/%s-rounds/%d.jsonl.zst" % (runs.root, name, i) for name in ("plain", "both")]
        assert filecmp.cmp(*files, shallow=False), "the samples of rollout %d differ" % i
    assert filecmp.cmp(plain + "/trainer.safetensors", both + "/trainer.safetensors", shallow=False)
    a, b = tensors(plain + "/model.safetensors"), tensors(both + "/model.safetensors")
    changed = {k for k in a if a[k] != b[k]}
    assert a.keys() == b.keys()
    assert changed == {k for k in a if k.startswith(LAYER)}, sorted(changed)
    state = [json.load(open(d + "/state.json")) for d in (plain, both)]
    assert state[1].pop("mtp_optimizer_step") == 2 * runs.n_rollout
    assert state[0] == state[1], state
    assert runs.metrics("plain", "train/grad_norm") == runs.metrics("both", "train/grad_norm")


def check_resumed(runs, both):
    """The second half in another process, and with another division into micro-batches."""
    half = runs.train("half", *SPECULATIVE, *TRAINED, rollouts=runs.n_rollout // 2)
    assert os.path.exists(half + "/trainer_mtp.safetensors")
    again = runs.train("half", *SPECULATIVE, *TRAINED, "--load", runs.root + "/half", "--max-tokens-per-gpu", 400)
    for name in ("model.safetensors", "trainer.safetensors", "trainer_mtp.safetensors"):
        assert filecmp.cmp("%s/%s" % (both, name), "%s/%s" % (again, name), shallow=False), name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        runs = Runs(args, root)
        runs.sft()
        plain = runs.train("plain")
        both = runs.train("both", *SPECULATIVE, *TRAINED)
        check_equal_runs(runs, plain, both)
        loss, rate = runs.metrics("both", "train/mtp_loss"), runs.metrics("both", "rollout/spec_accept_rate")
        print("mtp_loss %.3f to %.3f, spec_accept_rate %.3f to %.3f" % (loss[0], loss[-1], rate[0], rate[-1]))
        assert loss[-1] < loss[0]
        if args.long:
            last = rate[-10:]
            assert sum(last) / len(last) > 0.5, last
        else:
            check_resumed(runs, both)
    print("1 passed, 0 failed, 0 skipped")


main()
