#!/usr/bin/env python3
"""python_loss.py --miles MILES - what a loss in Python (torch) costs: CPU time of the worker for each sample,
everything included (message, views of the arrays, autograd, derivatives), while `miles loss` calls it.  Run it
with the python3 that has torch first on PATH."""
import argparse
import json
import os
import random
import subprocess
import tempfile

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
"""


def batch(n_sample, n_token):
    def numbers():
        return [round(random.uniform(-3, 0), 4) for _ in range(n_token)]

    def sample(i):
        return {"group": i // 8, "rollout_id": i, "reward": float(i % 2), "loss_mask": [1] * n_token,
                "log_probs": numbers(), "old_log_probs": numbers(), "rollout_log_probs": numbers(), "entropy": numbers()}

    return json.dumps({"samples": [sample(i) for i in range(n_sample)]}) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    opts = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as root:
        with open(root + "/bench_loss.py", "w") as f:
            f.write(LOSS)
        for n_token in (1024, 4096):
            subprocess.run([opts.miles, "loss", "--loss-type", "custom_loss", "--custom-loss-function-path",
                            "bench_loss.loss"], input=batch(8, n_token) * 63, text=True, check=True,
                           stdout=subprocess.DEVNULL, env=dict(os.environ, PYTHONPATH=root, TIMES=root + "/times"))
            with open(root + "/times") as f:
                # log-probs, old ones, the engine's, entropy, advantages, returns, two masks; two derivatives
                print(f"{n_token} tokens: {1e3 * float(f.read()):.2f} ms of CPU time, {10 * 8 * n_token >> 10} KiB",
                      flush=True)


main()
