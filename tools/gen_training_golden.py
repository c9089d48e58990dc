#!/usr/bin/env python3
"""Losses of training runs by PyTorch: tests/golden/training.

    pip install torch transformers safetensors
    python3 tools/gen_training_golden.py tests/golden/data/qwen3 tests/golden/training

The model of that directory is trained in f32 for 50 steps of torch's AdamW on the
sequences (of at least 4 tokens) of its golden.safetensors, once on every next token and once on the second half
of each sequence through a mask; every step sees all sequences.  A sample's loss is the
mean over its tokens, a step's loss the mean over samples, gradients are clipped to a norm
of 1, and vectors do not decay.  With the last run goes the gradient of a sum of log-probs
and entropies with given weights, at a temperature other than 1, as of a policy loss; and
one step of GRPO, with clipping, a KL loss and an entropy bonus.
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

STEPS, LR, DECAY, BETAS, EPS, CLIP = 50, 1e-3, 0.1, (0.9, 0.98), 1e-8, 1.0


def sequences(path):
    tensors = load_file(path + "/golden.safetensors")
    found = []
    while f"tokens.{len(found)}" in tensors:
        found.append(tensors[f"tokens.{len(found)}"].long())
    return [ids for ids in found if len(ids) >= 4]


def load(path):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                attn_implementation="eager").train()


def response(ids, whole):
    return len(ids) - 1 if whole else len(ids) // 2


def mask(i, n, whole):
    return torch.tensor([1.0 if whole or (7 * t + i) % 3 else 0.0 for t in range(n)])


def log_probs(model, ids, n, temperature=1.0):
    """Log-probs and entropies of the last n tokens."""
    logits = model(ids[None]).logits[0, -n - 1:-1] / temperature
    all_of = torch.log_softmax(logits, -1)
    entropy = -(all_of.exp() * all_of).sum(-1)
    return all_of.gather(1, ids[-n:, None])[:, 0], entropy


def step_loss(model, data, whole):
    terms = []
    for i, ids in enumerate(data):
        n = response(ids, whole)
        m = mask(i, n, whole)
        terms.append(-(log_probs(model, ids, n)[0] * m).sum() / m.sum())
    return sum(terms) / len(terms)


def train(path, whole):
    model, data = load(path), sequences(path)
    vectors = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step_loss(model, data, whole)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "grad_norm": norms}


def policy_gradient(path):
    """d sum(a log p + b H) / d weights, a and b of a formula the test repeats."""
    model, data = load(path), sequences(path)
    total = 0
    for i, ids in enumerate(data):
        n = response(ids, False)
        t = torch.arange(n)
        a = ((5 * t + 3 * i) % 11 - 5).float() / 8
        b = ((3 * t + 2 * i) % 7 - 3).float() / 16
        lp, h = log_probs(model, ids, n, 0.7)
        m = mask(i, n, False)
        total = total + (a * m * lp + b * m * h).sum()
    total.backward()
    return {name: p.grad for name, p in model.named_parameters()}


GRPO_TENSORS = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                "model.layers.0.input_layernorm.weight", "model.layers.1.mlp.down_proj.weight",
                "model.norm.weight", "lm_head.weight")


def low_var_kl(lp, base):
    d = base - lp
    return d.exp() - 1 - d


def grpo(path):
    """One step of GRPO on one group: the loss, gradients, and the log-probs it was given."""
    model, data = load(path), sequences(path)
    reward = torch.tensor([(3 * i % 5) / 4 for i in range(len(data))])
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    out, total = {}, 0
    for i, ids in enumerate(data):
        n = response(ids, False)
        t, m = torch.arange(n), mask(i, n, False)
        lp, h = log_probs(model, ids, n)
        old = (lp * 256).round() / 256 + ((7 * t + 2 * i) % 9 - 4).float() / 12
        ref = (lp * 256).round() / 256 + ((5 * t + 3 * i) % 7 - 3).float() / 8
        old, ref = old.detach(), ref.detach()
        ratio = (lp - old).exp()
        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
        policy = -torch.minimum(ratio * advantage[i], clipped * advantage[i])
        term = policy + 0.1 * low_var_kl(lp, ref) - 0.01 * h
        total = total + (term * m).sum() / m.sum() / len(data)
        out[f"old.{i}"], out[f"ref.{i}"] = old.contiguous(), ref.contiguous()
    total.backward()
    out["loss"] = total.detach().reshape(1)
    gradients = dict(model.named_parameters())
    for name in GRPO_TENSORS:
        out["grad." + name] = gradients[name].grad
    return out


def main():
    path, out = sys.argv[1:]
    with open(out + "/training.json", "w") as f:
        json.dump({"all": train(path, True), "masked": train(path, False)}, f, indent=1)
        f.write("\n")
    save_file(policy_gradient(path), out + "/policy_grads.safetensors")
    save_file(grpo(path), out + "/grpo.safetensors")


main()
