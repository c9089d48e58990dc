"""Rewards.  The built-in ones are those of --rm-type: miles computes them."""

import asyncio
import inspect

from miles import host
from miles.rollout.rm_hub.math_utils import extract_answer as extract_boxed_answer
from miles.rollout.rm_hub.math_utils import grade_answer_verl
from miles.utils.misc import load_function

__all__ = ["async_rm", "batched_async_rm", "extract_boxed_answer", "grade_answer_verl", "remote_rm"]


async def remote_rm(args, sample):
    from miles.utils.http_utils import request

    payload = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    return await request("POST", args.rm_url, payload)


async def _value(value):
    return await value if inspect.isawaitable(value) else value


def _config(args, sample):
    spec = sample.reward_spec
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    path = (spec and spec.custom_rm_path) or args.custom_rm_path
    kind = (spec and spec.rm_type) or metadata.get("rm_type") or args.rm_type or ""
    return path or None, kind.strip()


async def async_rm(args, sample, **kwargs):
    """The reward of a sample: --custom-rm-path, else the sample's own type, else --rm-type."""
    path, kind = _config(args, sample)
    if path:
        return await _value(load_function(path)(args, sample, **kwargs))
    if not kind:
        raise NotImplementedError("there is no reward: give --rm-type or --custom-rm-path")
    if kind == "remote_rm":
        return await remote_rm(args, sample)
    return host.ask(
        "grade", type=kind, response=sample.response, label=sample.label, metadata=sample.metadata, tokens=sample.tokens
    )


async def batched_async_rm(args, samples, inplace_set_reward_field=False, **kwargs):
    """The rewards of several samples; --custom-rm-path gets them in one call."""
    if args.custom_rm_path:
        rewards = await _value(load_function(args.custom_rm_path)(args, samples, **kwargs))
    else:
        rewards = await asyncio.gather(*(async_rm(args, s, **kwargs) for s in samples))
    if not inplace_set_reward_field:
        return rewards
    for sample, reward in zip(samples, rewards, strict=True):
        assert sample.reward is None, f"sample {sample.index} has a reward already: {sample.reward}"
        sample.reward = reward
    return None
