#!/usr/bin/env python3
"""python_loss.py --miles MILES [--layers N [--turns N]] - what a loss in Python (torch) costs.

First, with --layers, train steps of a model with the shapes of Qwen3-0.6B (28 layers) with the built-in loss and with
the same one in Python, in turns.  Then the CPU time of the worker for each sample, everything included (message, views
of the arrays, autograd, derivatives), while `miles loss` calls it.  Run it with the python3 that has torch first on
PATH."""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/e2e"))
from random_llama import Shape, write_model  # noqa: E402

LOSS = """
import os
import time
import torch
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy

torch.set_num_threads(1)
times = []


def loss(args, batch, logits, sum_of_sample_mean):
    times.append(time.process_time())
    if len(times) == 500:
        with open(os.environ["TIMES"], "w") as f:
            f.write(str((times[-1] - times[99]) / 400))
    log_probs = torch.cat(get_log_probs_and_entropy(logits, args=args)["log_probs"])
    ratio = (log_probs - torch.cat(batch["log_probs"])).exp()
    advantages = torch.cat(batch["advantages"])
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    return sum_of_sample_mean(loss), {}


def reward(args, sample, **kwargs):  # never equal in a group: samples without a derivative have no backward pass
    return float(sample.index)
"""


def batch(n_sample, n_token):
    def numbers():
        return [round(random.uniform(-3, 0), 4) for _ in range(n_token)]

    def sample(i):
        return {"group": i // 8, "rollout_id": i, "reward": float(i % 2), "loss_mask": [1] * n_token,
                "log_probs": numbers(), "old_log_probs": numbers(), "rollout_log_probs": numbers(), "entropy": numbers()}

    return json.dumps({"samples": [sample(i) for i in range(n_sample)]}) + "\n"


def train_seconds(miles, root, name, *more):
    """The train steps of a run; the first one also prepares memory."""
    run = f"{root}/run-{name}"
    subprocess.run([miles, "train", "--hf-checkpoint", root + "/model", "--prompt-data", root + "/prompts.jsonl",
                    "--input-key", "text", "--label-key", "label", "--custom-rm-path", "bench_loss.reward",
                    "--num-rollout", "2",
                    "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "16",
                    "--global-batch-size", "4", "--lr", "1e-6", "--advantage-estimator", "grpo", "--optimizer", "sgd",
                    "--save", run, *more], check=True, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, PYTHONPATH=root, TIMES=root + "/times"))
    with open(run + "/timing.jsonl") as f:
        return [row["perf/actor_train_time"] for row in map(json.loads, f) if "perf/actor_train_time" in row][1:]


def compare_steps(miles, root, layers, turns):
    os.mkdir(root + "/model")
    write_model(root + "/model", Shape(hidden=1024, layers=layers, heads=16, kv_heads=8, head_dim=128, inner=3072,
                                       vocab=151936))
    with open(root + "/prompts.jsonl", "w") as f:
        for i in range(2):
            f.write(json.dumps({"text": f"what is {i} + {i}? " * 20, "label": str(2 * i)}) + "\n")
    in_python = ("--loss-type", "custom_loss", "--custom-loss-function-path", "bench_loss.loss")
    built_in, python = [], []
    for turn in range(turns):
        built_in += train_seconds(miles, root, f"c{turn}")
        python += train_seconds(miles, root, f"python{turn}", *in_python)
    print(f"{layers} layers of 0.6B shapes, 4 samples: built in {min(built_in):.3f} s, in Python {min(python):.3f} s,"
          f" ratio {min(python) / min(built_in):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--turns", type=int, default=2)
    opts = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as root:
        with open(root + "/bench_loss.py", "w") as f:
            f.write(LOSS)
        if opts.layers:
            compare_steps(opts.miles, root, opts.layers, opts.turns)
        for n_token in (1024, 4096):
            subprocess.run([opts.miles, "loss", "--loss-type", "custom_loss", "--custom-loss-function-path",
                            "bench_loss.loss"], input=batch(8, n_token) * 63, text=True, check=True,
                           stdout=subprocess.DEVNULL, env=dict(os.environ, PYTHONPATH=root, TIMES=root + "/times"))
            with open(root + "/times") as f:
                # log-probs, old ones, the engine's, entropy, advantages, returns, two masks; two derivatives
                print(f"{n_token} tokens: {1e3 * float(f.read()):.2f} ms of CPU time, {10 * 8 * n_token >> 10} KiB",
                      flush=True)


main()
