#!/usr/bin/env python3
"""gen_objectives.py --verl DIR --trl DIR > tests/golden/rl/objectives.jsonl - losses and advantages of other trainers.

DIR are unpacked wheels: verl 0.9.1 (policy losses and advantages of verl/trainer/ppo/core_algos.py) and trl 1.16.0 (the gamma
weights of VESPO, the punishment of overlong answers).  Both are run in double precision; packages that these functions import but do not use are replaced by empty
modules.  Needs torch and numpy."""
import argparse
import importlib.util
import json
import sys
import types
from unittest import mock


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verl_functions(root):
    import torch

    def masked_mean(values, mask, axis=None):
        return (values * mask).sum(axis) / (mask.sum(axis) + 1e-8)

    class Torch(types.ModuleType):
        def __getattr__(self, name):
            return mock.MagicMock()
    for name in ("omegaconf", "verl", "verl.utils", "verl.utils.torch_functional", "verl.trainer", "verl.trainer.config",
                 "verl.utils.import_utils", "verl.workers", "verl.workers.config"):
        sys.modules[name] = Torch(name)

    class Config:
        """What the functions read of an ActorConfig."""

        def __init__(self, **members):
            self.__dict__.update(members)

        def get(self, name, default=None):
            return self.__dict__.get(name, default)

    sys.modules["omegaconf"].DictConfig = Config
    sys.modules["verl.trainer.config"].AlgoConfig = type("AlgoConfig", (), {})
    sys.modules["verl.workers.config"].ActorConfig = Config
    sys.modules["verl.utils.import_utils"].deprecated = lambda *a, **k: lambda f: f
    functional = sys.modules["verl.utils.torch_functional"]
    functional.masked_mean = masked_mean
    functional.masked_sum = lambda v, m, axis=None: (v * m).sum(axis)
    functional.masked_whiten = lambda v, m: v  # the advantages before it
    sys.modules["verl"].utils = sys.modules["verl.utils"]
    sys.modules["verl.utils"].torch_functional = functional
    return load(root + "/verl/trainer/ppo/core_algos.py", "core_algos"), Config, torch


def vespo_weights(root):
    source = open(root + "/trl/trainer/grpo_trainer.py").read()
    at = source.index("    def get_gamma_weights(")
    end = source.index("    def _compute_loss(", at)
    import math
    import torch
    scope = {"math": math, "torch": torch}
    lines = source[at:end].split("\n")
    exec("\n".join(l[4:] for l in lines), scope)
    return scope["get_gamma_weights"]


def overlong_punishment(root):
    """TRL's class alone: its package needs more than torch."""
    source = open(root + "/trl/rewards/other_rewards.py").read()
    at = source.index("class _SoftOverlongPunishment")
    scope = {}
    exec("from __future__ import annotations\n" + source[at:], scope)
    return scope["_SoftOverlongPunishment"]


def put_losses(core, config, torch, rows_of, n=6, width=9):
    """CISPO, GSPO and, in the clipped loss with dual clip, the reductions of DAPO and Dr.GRPO."""
    for trial in range(3):
        lengths = torch.randint(2, width + 1, (n,))
        mask = (torch.arange(width)[None] < lengths[:, None]).double()
        if trial == 2:
            mask = mask * (torch.rand(n, width) < 0.8)
            mask[:, 0] = 1
        old = -3 * torch.rand(n, width) - 0.1
        moved = 0.8 * (torch.rand(n, width) - 0.5) * (trial + 1)
        adv = (2 * torch.randn(n, 1)).expand(n, width).clone()
        for kind, fn, how, by in (
                ("cispo_loss", core.compute_policy_loss_cispo, "seq-mean-token-mean", 1),
                ("gspo", core.compute_policy_loss_gspo, "seq-mean-token-mean", 1),
                ("dapo", core.compute_policy_loss_vanilla, "token-mean", 2),
                ("drgrpo", core.compute_policy_loss_vanilla, "seq-mean-token-sum-norm", 2)):
            new = (old + moved * by).requires_grad_()
            config.global_batch_info = {"loss_scale_factor": 8} if kind == "drgrpo" else {}
            loss, _ = fn(old, new, adv, mask, loss_agg_mode=how, config=config)
            loss.backward()
            rows_of(lengths, kind, old, new.detach(), adv, mask, loss, new.grad)


def put_rewards(core, config, torch, punishment):
    import numpy as np

    for trial in range(3):
        n, width = 8, 2
        group = np.array([0, 0, 0, 1, 1, 1, 1, 1])
        parts = {"reward": (torch.randint(0, 5, (n,)).double() / 4).tolist(), "format": torch.randn(n).tolist()}
        config.gdpo_reward_keys, config.gdpo_reward_weights = list(parts), [2.0, 0.5]
        with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(np, "float32", np.float64):
            got, _ = core.compute_gdpo_outcome_advantage(
                torch.zeros(n, width), torch.ones(n, width), group, config=config,
                non_tensor_batch={k: np.array(v) for k, v in parts.items()},
                batch={"prompts": torch.zeros(n, 1), "attention_mask": torch.ones(n, 1 + width, dtype=torch.long)})
        print(json.dumps({"fn": "objective", "kind": "gdpo", "args": {**parts, "groups": group.tolist(), "weights": [2.0, 0.5]},
                          "out": {"advantages": got[:, 0].tolist()}}))
        lengths = torch.randint(1, 21, (n,)).tolist()
        print(json.dumps({"fn": "objective", "kind": "overlong", "args": {"lengths": lengths, "max": 20, "buffer": 8},
                          "out": {"rewards": punishment(20, 8)(completion_ids=[[1] * k for k in lengths])}}))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--verl", required=True)
    p.add_argument("--trl", required=True)
    args = p.parse_args()
    core, actor_config, torch = verl_functions(args.verl)
    gamma = vespo_weights(args.trl)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    n, width = 6, 9
    config = actor_config(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, tau_pos=1.0, tau_neg=1.05, global_batch_info={},
        policy_loss=types.SimpleNamespace(clip_cov_ratio=1.0, clip_cov_lb=0.2, clip_cov_ub=5.0, kl_cov_ratio=0.2, ppo_kl_coef=0.7))

    def put(fn, old, new, adv, mask, loss, grad):
        put_rows(lengths, fn, old, new, adv, mask, loss, grad)

    def put_rows(lengths, fn, old, new, adv, mask, loss, grad):
        def rows(t):
            return [[float(x) for x in t[i]][: int(lengths[i])] for i in range(n)]

        print(json.dumps({"fn": "objective", "kind": fn, "args": {
            "loss_masks": [[int(x) for x in mask[i]][: int(lengths[i])] for i in range(n)], "old_log_probs": rows(old),
            "log_probs": rows(new), "advantages": rows(adv)}, "out": {"loss": float(loss), "d_log_probs": rows(grad)}}))

    for trial in range(3):
        lengths = torch.randint(2, width + 1, (n,))
        mask = (torch.arange(width)[None] < lengths[:, None]).double()
        if trial == 2:  # some tokens are not trained on
            mask = mask * (torch.rand(n, width) < 0.8)
            mask[:, 0] = 1
        old = -3 * torch.rand(n, width) - 0.1
        moved = 0.5 * (torch.rand(n, width) - 0.5) * (trial + 1)
        adv = (2 * torch.randn(n, 1)).expand(n, width).clone()
        for kind, fn in (("sapo_loss", core.compute_policy_loss_sapo), ("gmpo_loss", core.compute_policy_loss_geo_mean)):
            new = (old + moved).requires_grad_()
            loss, _ = fn(old, new, adv, mask, loss_agg_mode="seq-mean-token-mean", config=config)
            loss.backward()
            put(kind, old, new.detach(), adv, mask, loss, new.grad)
        # The covariances are verl's if all log-probs have moved by the same amount.
        for kind, fn in (("clip_cov_loss", core.compute_policy_loss_clip_cov), ("kl_cov_loss", core.compute_policy_loss_kl_cov)):
            new = (old + 0.05 * (trial + 1)).requires_grad_()
            loss, _ = fn(old, new, adv, mask, loss_agg_mode="seq-mean-token-mean", config=config)
            loss.backward()
            put(kind, old, new.detach(), adv, mask, loss, new.grad)
        new = (old + moved / 4).requires_grad_()
        phi = gamma(adv[:, :1], (new - old).detach(), mask, None)
        loss = ((-phi * adv * new * mask).sum(-1) / mask.sum(-1)).mean()
        loss.backward()
        put("vespo_loss", old, new.detach(), adv, mask, loss, new.grad)
        new = (old + moved / 40).requires_grad_()  # LUSPO: GSPO's ratio, the sum over tokens
        ratio = (((new - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
        token = -torch.min(ratio * adv, ratio.clamp(0.8, 1.28) * adv).expand(n, width)
        loss = (token * mask).sum(-1).mean()
        loss.backward()
        put("luspo", old, new.detach(), adv, mask, loss, new.grad)
        reward = torch.randint(0, 5, (n,)).double() / 4
        group = [0, 0, 0, 1, 1, 1]
        token_reward = torch.zeros(n, width)
        token_reward[:, 0] = reward
        got, _ = core.compute_rloo_outcome_advantage(token_reward, torch.ones(n, width), index=group)
        print(json.dumps({"fn": "objective", "kind": "rloo", "args": {"rewards": reward.tolist(), "groups": group},
                          "out": {"advantages": got[:, 0].tolist()}}))
    put_losses(core, config, torch, put_rows)
    put_rewards(core, config, torch, overlong_punishment(args.trl))


main()
