#!/usr/bin/env python3
"""Writes tests/golden/optimizers.json: rows of a tiny model after five steps of torch's AdamW
(f32 moments, and moments rounded to bf16 after each step), SGD and Muon, and of transformers'
Adafactor.

Gradients follow a formula that tests/unit/test_optimizer.c repeats.  Everything is computed in
double precision, Muon's Newton-Schulz iterations too (torch rounds them to bf16), except for
bf16 moments, where the rounding points would differ.

  python3 tools/gen_optimizer_golden.py        # needs torch, transformers, safetensors
"""
import inspect
import json
import os

import torch
from safetensors.torch import load_file
from torch.optim import _muon
from transformers.optimization import Adafactor

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
STEPS, COLUMNS = 5, 6
source = inspect.getsource(_muon._zeropower_via_newtonschulz)
exec(source.replace("torch.bfloat16", "torch.float64"), _muon.__dict__)


def gradient(name, shape, step):
    n = int(torch.tensor(shape).prod())
    i = torch.arange(n, dtype=torch.int64) + 31 * len(name)
    i = (i * i % 5003 + i * 7919 + step * 104729) % 2003 - 1001
    return (i.float() * torch.tensor(1e-3)).view(shape)


def rounded(state):
    for key in ("exp_avg", "exp_avg_sq"):
        state[key].copy_(state[key].bfloat16().float())


def run(weights, make, dtype=torch.float64, after=None):
    params = {k: torch.nn.Parameter(v.to(dtype, copy=True)) for k, v in weights.items()}
    optimizers = make(params)
    for step in range(STEPS):
        for name, p in params.items():
            p.grad = gradient(name, p.shape, step).to(dtype)
        for o in optimizers:
            o.step()
            for state in o.state.values() if after else ():
                after(state)
    out = {}
    for name, p in params.items():
        rows = p.detach().view(1, -1) if p.dim() == 1 else p.detach()
        out[name] = [rows[0, :COLUMNS].tolist(), rows[-1, :COLUMNS].tolist()]
    return out


def groups(params, decay):
    return [{"params": [p for p in params if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}]


def adamw(lr):
    return lambda params: [torch.optim.AdamW(groups(params.values(), 0.1), lr=lr,
                                             betas=(0.9, 0.98), eps=1e-8)]


def sgd(lr):
    return lambda params: [torch.optim.SGD(groups(params.values(), 0.1), lr=lr, momentum=0.9)]


def muon(lr, **more):
    def make(params):
        hidden = [p for n, p in params.items()
                  if p.dim() == 2 and "embed" not in n and "lm_head" not in n]
        rest = [p for p in params.values() if not any(p is h for h in hidden)]
        return [torch.optim.Muon(hidden, lr=lr, weight_decay=0.1, **more),
                torch.optim.AdamW(groups(rest, 0.1), lr=lr, betas=(0.9, 0.98), eps=1e-8)]
    return make


def adafactor(lr, scale):
    return lambda params: [Adafactor(groups(params.values(), 0.1), lr=lr,
                                     relative_step=False, scale_parameter=scale)]


def main():
    weights = load_file(os.path.join(HERE, "data", "qwen3", "model.safetensors"))
    weights = {k: v.float() for k, v in weights.items()}
    golden = {
        "adamw": run(weights, adamw(1e-2)),
        "adamw_bf16": run(weights, adamw(1e-3), torch.float32, rounded),
        "sgd": run(weights, sgd(1e-2)),
        "muon": run(weights, muon(1e-3, momentum=0.95, nesterov=True,
                                  adjust_lr_fn="match_rms_adamw")),
        "muon_original": run(weights, muon(1e-3, momentum=0.9, nesterov=False, ns_steps=3,
                                           adjust_lr_fn="original")),
        "adafactor": run(weights, adafactor(1e-3, False)),
        "adafactor_scaled": run(weights, adafactor(1e-2, True)),
    }
    with open(os.path.join(HERE, "optimizers.json"), "w") as f:
        json.dump({k: {n: [[round(x, 9) for x in r] for r in v] for n, v in c.items()}
                   for k, c in golden.items()}, f, separators=(",", ":"))
        f.write("\n")


main()
