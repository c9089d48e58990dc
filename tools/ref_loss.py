#!/usr/bin/env python3
"""ref_loss.py --miles PROGRAM [--seed N] [--configs N] - `miles loss` against PyTorch in double precision.

The formulas are written down here once more, over whole tensors, and differentiated by autograd; flags and batches
are drawn at random: masks, empty and fully masked samples, groups of one, rollouts in several pieces, ratios far
out of range.  Exits with 1 when a number differs by more than 1e-9 relative."""
import argparse
import json
import math
import random
import subprocess
import sys

import torch

torch.set_default_dtype(torch.float64)
LEVELS = ["token", "sequence", "geometric"]


# ---- drawing flags and batches ------------------------------------------------------------------


def draw_flags(r):
    f = {"advantage-estimator": r.choice(["grpo", "gspo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"])}
    kind = f["advantage-estimator"]
    f["loss-type"] = r.choice(["policy_loss"] * 6 + ["cispo_loss", "sft_loss"])
    f["normalize-advantages"] = kind.startswith("reinforce") or r.random() < 0.3
    f["disable-grpo-std-normalization"] = r.random() < 0.3
    f["disable-rewards-normalization"] = r.random() < 0.2
    f["gamma"], f["lambd"] = r.choice([1, 0.99, 0.5]), r.choice([1, 0.95, 0.0])
    f["eps-clip"] = r.choice([0.2, 0.1, 0.4])
    if r.random() < 0.5:
        f["eps-clip-high"] = r.choice([0.28, 0.1, 1.5])
    if r.random() < 0.4:
        f["eps-clip-c"] = r.choice([3, 1.5])
    f["value-clip"] = r.choice([0.2, 0.05])
    f["kl-loss-type"] = r.choice(["k1", "k2", "k3", "low_var_kl"])
    if r.random() < 0.4:
        f["use-kl-loss"], f["kl-loss-coef"] = True, r.choice([0, 0.1, 1])
        f["use-unbiased-kl"] = r.random() < 0.5
    elif kind != "ppo" and r.random() < 0.5:
        f["kl-coef"] = 0.1
    if r.random() < 0.4:
        f["entropy-coef"] = 0.01
    f["calculate-per-token-loss"] = r.random() < 0.3
    f["use-opsm"], f["opsm-delta"] = r.random() < 0.3, r.choice([0.0001, 0.1])
    f["use-opd"], f["opd-kl-coef"] = r.random() < 0.3, 0.5
    f["use-rollout-logprobs"] = r.random() < 0.2
    if r.random() < 0.5:
        f["custom-pg-loss-reducer-function-path"] = r.choice(["drgrpo", "dapo"])
    if not f["use-rollout-logprobs"] and r.random() < 0.6:
        draw_correction(r, f)
    return f


def draw_correction(r, f):
    f["use-tis"] = True
    f["custom-tis-function-path"] = r.choice(["tis", "icepop", "mis"])
    f["tis-clip"], f["tis-clip-low"] = r.choice([2, 1.2]), r.choice([0, 0.8])
    f["tis-level"], f["rs-level"] = r.choice(LEVELS), r.choice(LEVELS)
    f["tis-mode"] = r.choice(["truncate", "clip", "mask"])
    f["tis-upper-bound"] = r.choice([2, 1.3])
    if r.random() < 0.5:
        f["tis-lower-bound"] = 0.6
    f["use-rs"] = r.random() < 0.5
    if r.random() < 0.5:
        f["rs-veto-threshold"] = 0.3
    f["tis-batch-normalize"] = f["tis-level"] != "geometric" and r.random() < 0.5


def draw_batch(r, flags):
    spread = r.choice([0.05, 0.5, 3.0, 40.0])
    if flags.get("use-unbiased-kl") and flags["kl-loss-type"] != "low_var_kl":
        spread = min(spread, 3.0)  # beyond, the terms that autograd adds cancel
    samples, rollout = [], 0
    for group in range(r.randint(1, 3)):
        for _ in range(r.choice([1, 2, 4])):
            reward = r.choice([0.0, 1.0, round(r.gauss(0, 1), 3)])
            rollout += 1
            for _ in range(r.choice([1, 1, 1, 2])):
                samples.append(draw_sample(r, flags, group, rollout, reward, spread))
    return {"samples": samples}


def draw_sample(r, flags, group, rollout, reward, spread):
    n = r.choice([0, 1, 2, 5, 9])
    whole = flags["advantage-estimator"] == "reinforce_plus_plus"  # which refuses samples without a trained token
    n = max(n, 1) if whole else n
    old = [r.uniform(-4, -0.01) for _ in range(n)]
    near = lambda: [x + r.uniform(-spread, spread) for x in old]
    mask = [int(r.random() < r.choice([0.8, 0.8, 0.0])) for _ in range(n)]
    if whole and not any(mask):
        mask[0] = 1
    return {
        "group": group,
        "rollout_id": rollout,
        "reward": reward,
        "loss_mask": mask,
        "log_probs": near(),
        "old_log_probs": old,
        "rollout_log_probs": near(),
        "ref_log_probs": near(),
        "teacher_log_probs": near(),
        "entropy": [r.uniform(0, 5) for _ in range(n)],
        "values": [r.gauss(0, 1) for _ in range(n)],
        "old_values": [r.gauss(0, 0.3) for _ in range(n)],
    }


# ---- the formulas -------------------------------------------------------------------------------


def normalised_rewards(samples, flags):
    kind = flags["advantage-estimator"]
    raw = [s["reward"] for s in samples]
    if kind in ("ppo", "reinforce_plus_plus") or flags["disable-rewards-normalization"]:
        return raw
    out = []
    for s in samples:
        members = {o["rollout_id"]: o["reward"] for o in samples if o["group"] == s["group"]}
        values = torch.tensor(list(members.values()))
        x = s["reward"] - values.mean().item()
        std = values.std().item() if len(members) > 1 else 0.0
        if kind in ("grpo", "gspo") and not flags["disable-grpo-std-normalization"] and std > 1e-15:
            x /= std + 1e-6
        out.append(x)
    return out


def clamp_ratio(x):
    return torch.clamp(torch.nan_to_num(x, nan=0.0, posinf=20.0, neginf=-20.0), -20, 20)


def kl_estimate(kind, a, b, ratio=None):
    d = a - b
    if kind == "k1":
        v = d
    elif kind == "k2":
        v = d * d / 2
    else:
        x = clamp_ratio(-d) if kind == "low_var_kl" else -d
        v = torch.exp(x) - 1 - x
    v = v if ratio is None else ratio * v
    return torch.clamp(v, -10, 10) if kind == "low_var_kl" else v


def estimate(c, flags, rewards):
    """Advantages and returns of each sample."""
    kind, coef = flags["advantage-estimator"], flags.get("kl-coef", 0)
    advantages, returns = [], []
    for i, reward in enumerate(rewards):
        n, mask = len(c["mask"][i]), c["mask"][i]
        kl = kl_estimate(flags["kl-loss-type"], c["student"][i], c["ref"][i]) if coef else torch.zeros(n)
        a, g = torch.full((n,), float(reward)), None
        if kind == "reinforce_plus_plus_baseline":
            a = reward - coef * kl
        elif kind == "reinforce_plus_plus":
            tokens = -coef * kl
            tokens[int(torch.nonzero(mask)[-1])] += reward
            a, after = torch.zeros(n), 0.0
            for t in reversed(range(n)):
                after = tokens[t] + flags["gamma"] * after
                a[t] = after
        elif kind == "ppo":
            a, g = gae(c["old_value"][i], mask, reward, flags)
        advantages.append(a)
        returns.append(a.clone() if g is None else g)
    return advantages, returns


def gae(values, mask, reward, flags):
    a, g = torch.zeros(len(mask)), torch.zeros(len(mask))
    where = [t for t in range(len(mask)) if mask[t]]
    next_value = next_advantage = 0.0
    for k, t in enumerate(reversed(where)):
        delta = (reward if k == 0 else 0.0) + flags["gamma"] * next_value - values[t]
        a[t] = next_advantage = delta + flags["gamma"] * flags["lambd"] * next_advantage
        g[t], next_value = a[t] + values[t], values[t]
    return a, g


def distil_and_whiten(c, flags, advantages, returns):
    rkl = [s - t for s, t in zip(c["student"], c["teacher"])] if flags["use-opd"] else None
    for i in range(len(advantages)) if rkl else []:
        advantages[i] = advantages[i] - flags["opd-kl-coef"] * rkl[i]
        if flags["advantage-estimator"] == "reinforce_plus_plus_baseline":
            returns[i] = advantages[i].clone()
    if flags["normalize-advantages"] and sum(map(len, advantages)):
        trained = torch.cat(advantages)[torch.cat(c["mask"]).bool()]
        if len(trained) == 0:
            return None, None
        var = trained.var() if len(trained) > 1 else torch.zeros(())
        advantages = [(a - trained.mean()) / torch.sqrt(var + 1e-8) for a in advantages]
    return advantages, rkl


def level_ratio(l, mask, level):
    n = max(mask.sum().item(), 1)
    whole = (l * mask).sum()
    l = l if level == "token" else (whole if level == "sequence" else whole / n).expand_as(l)
    return torch.exp(torch.clamp(l, -20, 20))


def correct(c, flags):
    """Weights and kept masks of each sample."""
    kind = flags.get("custom-tis-function-path") if flags.get("use-tis") else None
    logs = [o - e for o, e in zip(c["old"], c["rollout"])]
    kept = [m.clone() for m in c["mask"]]
    if kind is None:
        return None, kept
    if kind != "mis":
        low, high = flags["tis-clip-low"], flags["tis-clip"]
        w = [torch.exp(l) for l in logs]
        if kind == "tis":
            return [x.clamp(low, high) for x in w], kept
        return [torch.where((x >= low) & (x <= high), x, torch.zeros(())) for x in w], kept
    high = flags["tis-upper-bound"]
    low = flags.get("tis-lower-bound", 1 / high)
    weights = []
    for i, l in enumerate(logs):
        mask = c["mask"][i]
        w = level_ratio(l, mask, flags["tis-level"])
        if flags["tis-mode"] == "mask":
            kept[i] = kept[i] * ((w >= low) & (w <= high))
        weights.append({"truncate": w.clamp(0, high), "clip": w.clamp(low, high), "mask": w}[flags["tis-mode"]] * mask)
        if flags["use-rs"]:
            v = level_ratio(l, mask, flags["rs-level"])
            kept[i] = kept[i] * ((v >= low) & (v <= high))
            if "rs-veto-threshold" in flags and bool((mask.bool() & (l < math.log(flags["rs-veto-threshold"]))).any()):
                kept[i] = kept[i] * 0
    if flags["tis-batch-normalize"]:
        if flags["tis-level"] == "token":
            mean = sum(w.sum() for w in weights) / max(sum(m.sum() for m in c["mask"]).item(), 1)
        else:
            mean = sum(w.sum() / max(m.sum().item(), 1) for w, m in zip(weights, c["mask"])) / len(weights)
        if mean > 1e-8:
            weights = [w / mean for w in weights]
    return weights, kept


def divisors(c, flags):
    counts = [int(m.sum()) for m in c["mask"]]
    if flags["calculate-per-token-loss"]:
        d, total = [1.0] * len(counts), sum(max(n, 1) for n in counts)
    else:
        ids = c["rollout_id"]
        d = [float(max(sum(n for n, k in zip(counts, ids) if k == mine), 1)) for mine in ids]
        total = len(set(ids))
    reducer = flags.get("custom-pg-loss-reducer-function-path")
    p = d
    if reducer == "drgrpo":
        p = [1.0 if flags["calculate-per-token-loss"] else 1000.0] * len(d)
    elif reducer == "dapo":
        p = [max(sum(counts), 1) / total] * len(d)
    return d, p, total


def policy_loss(c, flags, advantages):
    d, p, total = divisors(c, flags)
    weights, kept = correct(c, flags)
    high = flags.get("eps-clip-high", flags["eps-clip"])
    loss = torch.zeros(())
    for i, lp in enumerate(c["lp"]):
        mask, a = c["mask"][i], advantages[i]
        kl = c["student"][i] - lp
        sequence = (kl * mask).sum() / max(mask.sum().item(), 1)
        if flags["advantage-estimator"] == "gspo":
            kl = sequence.expand_as(kl)
        ratio = torch.exp(clamp_ratio(-kl))
        if flags["loss-type"] == "cispo_loss":
            x = -ratio.detach().clamp(1 - flags["eps-clip"], 1 + high) * a * lp
        else:
            x = torch.maximum(-ratio * a, -ratio.clamp(1 - flags["eps-clip"], 1 + high) * a)
            if "eps-clip-c" in flags:
                x = torch.where(a < 0, torch.minimum(-flags["eps-clip-c"] * a, x), x)
        if flags["use-opsm"]:
            x = x * (1 - ((a < 0) & (sequence.detach() > flags["opsm-delta"])).double())
        if weights is not None:
            x = x * weights[i]
        loss = loss + (x * kept[i]).sum() / p[i] / total
        other = torch.zeros(())
        if flags.get("entropy-coef"):
            other = other - flags["entropy-coef"] * (c["entropy"][i] * kept[i]).sum()
        if flags.get("use-kl-loss"):
            unbiased = torch.exp(lp - c["student"][i]) if flags["use-unbiased-kl"] else None
            v = kl_estimate(flags["kl-loss-type"], lp, c["ref"][i], unbiased)
            other = other + flags["kl-loss-coef"] * (v * kept[i]).sum()
        loss = loss + other / d[i] / total
    return loss


def sft_loss(c, flags):
    d, _, total = divisors(c, flags)
    return sum((-(lp * m).sum() / di / total for lp, m, di in zip(c["lp"], c["mask"], d)), torch.zeros(()))


def value_loss(c, flags, returns):
    d, _, total = divisors(c, flags)
    clip, loss = flags["value-clip"], torch.zeros(())
    for i, v in enumerate(c["value"]):
        old = c["old_value"][i]
        held = old + (v - old).clamp(-clip, clip)
        x = torch.maximum((held - returns[i]) ** 2, (v - returns[i]) ** 2)
        loss = loss + (x * c["mask"][i]).sum() / d[i] / total
    return loss


# ---- comparing ----------------------------------------------------------------------------------


def columns(batch, flags):
    take = lambda key, grad=False: [torch.tensor(s[key], dtype=torch.float64, requires_grad=grad) for s in batch["samples"]]
    c = {"lp": take("log_probs", True), "old": take("old_log_probs"), "rollout": take("rollout_log_probs")}
    c |= {"ref": take("ref_log_probs"), "teacher": take("teacher_log_probs"), "entropy": take("entropy", True)}
    c |= {"value": take("values", True), "old_value": take("old_values"), "mask": take("loss_mask")}
    c["student"] = c["rollout"] if flags["use-rollout-logprobs"] else c["old"]
    c["rollout_id"] = [s["rollout_id"] for s in batch["samples"]]
    return c


def reference(batch, flags):
    c = columns(batch, flags)
    out = {}
    if flags["loss-type"] == "sft_loss":
        loss = sft_loss(c, flags)
    else:
        out["rewards"] = normalised_rewards(batch["samples"], flags)
        advantages, returns = estimate(c, flags, out["rewards"])
        advantages, rkl = distil_and_whiten(c, flags, advantages, returns)
        if advantages is None:
            return None  # nothing to whiten: an error
        out |= {"advantages": [a.tolist() for a in advantages], "returns": [g.tolist() for g in returns]}
        if rkl:
            out["opd_reverse_kl"] = [k.tolist() for k in rkl]
        loss = policy_loss(c, flags, advantages)
    both = loss
    if flags["advantage-estimator"] == "ppo" and flags["loss-type"] != "sft_loss":
        both = loss + value_loss(c, flags, returns)
    if both.requires_grad:
        both.backward()
    grad = lambda xs: [x.grad.tolist() if x.grad is not None else [0.0] * len(x) for x in xs]
    out |= {"loss": loss.item(), "d_log_probs": grad(c["lp"]), "d_entropy": grad(c["entropy"]), "d_values": grad(c["value"])}
    return out


def differs(got, want):
    if isinstance(want, list):
        return len(got) != len(want) or any(differs(g, w) for g, w in zip(got, want))
    got = float(got)
    if math.isnan(want) or math.isinf(want):
        return not (math.isnan(want) and math.isnan(got) or got == want)
    return abs(got - want) > 1e-9 * max(abs(want), 1.0)


def words(flags):
    out = []
    for key, value in flags.items():
        if value is True:
            out.append("--" + key)
        elif value is not False:
            out += ["--" + key, str(value)]
    return out


def check(miles, flags, batches):
    """The number of batches compared, and of those that differ."""
    wanted = [reference(b, flags) for b in batches]
    batches = [b for b, w in zip(batches, wanted) if w is not None]
    wanted = [w for w in wanted if w is not None]
    text = "".join(json.dumps(b) + "\n" for b in batches)
    run = subprocess.run([miles, "loss"] + words(flags), input=text, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    if run.returncode or len(lines) != len(batches):
        print("miles loss", " ".join(words(flags)), "\n ", run.stderr.strip())
        return len(batches), len(batches)
    bad = 0
    for batch, line, want in zip(batches, lines, wanted):
        got = json.loads(line)
        wrong = [key for key in want if key not in got or differs(got[key], want[key])]
        if wrong:
            bad += 1
            print("miles loss", " ".join(words(flags)), "\n ", json.dumps(batch), "\n  differs in", ", ".join(wrong))
            for key in wrong:
                print("  ", key, "got", got.get(key), "\n   ", key, "want", want[key])
    return len(batches), bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--configs", type=int, default=100)
    p.add_argument("--batches", type=int, default=5)
    args = p.parse_args()
    r = random.Random(args.seed)
    n = bad = 0
    for _ in range(args.configs):
        flags = draw_flags(r)
        some, wrong = check(args.miles, flags, [draw_batch(r, flags) for _ in range(args.batches)])
        n, bad = n + some, bad + wrong
    print(f"{n} batches compared, {bad} differ")
    return 1 if bad or not n else 0


if __name__ == "__main__":
    sys.exit(main())
