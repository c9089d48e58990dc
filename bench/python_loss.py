#!/usr/bin/env python3
"""python_loss.py --miles MILES - what a loss in Python (torch) costs per sample: `miles loss` on the same
numbers with the built-in policy loss and with the same loss in Python, CPU time, the least of three runs.  Run it with the
python3 that has torch first on PATH."""
import argparse
import json
import os
import random
import resource
import subprocess
import tempfile

LOSS = """
import torch
from miles.backends.training_utils.loss_hub.logit_processors import get_log_probs_and_entropy


def loss(args, batch, logits, sum_of_sample_mean):
    log_probs = torch.cat(get_log_probs_and_entropy(logits, args=args)["log_probs"])
    ratio = (log_probs - torch.cat(batch["log_probs"])).exp()
    advantages = torch.cat(batch["advantages"])
    clipped = ratio.clamp(0.8, 1.2)
    return sum_of_sample_mean(torch.maximum(-ratio * advantages, -clipped * advantages)), {}
"""


def batch(n_sample, n_token):
    def numbers():
        return [round(random.uniform(-3, 0), 4) for _ in range(n_token)]

    def sample(i):
        return {"group": i // 8, "rollout_id": i, "reward": float(i % 2), "loss_mask": [1] * n_token, "log_probs": numbers(),
                "old_log_probs": numbers(), "rollout_log_probs": numbers(), "entropy": numbers()}

    return json.dumps({"samples": [sample(i) for i in range(n_sample)]}) + "\n"


def best(miles, flags, text, root):
    """CPU seconds of miles and its worker, the least of three runs."""
    env = dict(os.environ, PYTHONPATH=root, OMP_NUM_THREADS="1")
    times = []
    for _ in range(3):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([miles, "loss", *flags], input=text, text=True, check=True, stdout=subprocess.DEVNULL, env=env)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    opts = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        with open(root + "/bench_loss.py", "w") as f:
            f.write(LOSS)
        python = ["--loss-type", "custom_loss", "--custom-loss-function-path", "bench_loss.loss"]
        for n_token in (1024, 4096):
            random.seed(1)
            few, many = batch(8, n_token), batch(8, n_token) * 65
            own = best(opts.miles, [], many, root) - best(opts.miles, [], few, root)
            slow = best(opts.miles, python, many, root) - best(opts.miles, python, few, root)
            # log-probs, old ones, the engine's, entropy, advantages, returns, mask twice; two derivatives
            print(f"{n_token} tokens: {1e3 * (slow - own) / 512:.2f} ms of CPU time a sample, {10 * 8 * n_token / 1024:.0f} KiB of arrays")


main()
