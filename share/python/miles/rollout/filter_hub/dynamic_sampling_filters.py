"""Filters of groups."""

import statistics

from miles.rollout.filter_hub.base_types import DynamicFilterOutput
from miles.utils.types import Sample

__all__ = ["check_reward_nonzero_std", "check_no_aborted"]


def _flat(samples):
    return [s for x in samples for s in (x if isinstance(x, list) else [x])]


def check_reward_nonzero_std(args, samples, **kwargs):
    """Keeps a group whose rewards differ."""
    rewards = [float(s.get_reward_value(args)) for s in _flat(samples)]
    keep = len(rewards) > 1 and statistics.stdev(rewards) > 1e-8
    return DynamicFilterOutput(keep, None if keep else f"zero_std_{round(rewards[0], 1)}")


def check_no_aborted(args, samples, **kwargs):
    """Keeps a group of which no sample was aborted."""
    aborted = any(s.status == Sample.Status.ABORTED for s in _flat(samples))
    return DynamicFilterOutput(not aborted, "group_has_aborted" if aborted else None)
