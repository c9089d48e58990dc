"""The output of filters."""

import collections
from dataclasses import dataclass


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: "str | None" = None


def call_dynamic_filter(fn, *args, **kwargs):
    """Calls a filter, if there is one; a plain truth value is an output, too."""
    if fn is None:
        return DynamicFilterOutput(True)
    out = fn(*args, **kwargs)
    return out if isinstance(out, DynamicFilterOutput) else DynamicFilterOutput(out)


class MetricGatherer:
    """Counts dropped groups by reason."""

    def __init__(self):
        self._dropped = collections.Counter()

    def on_dynamic_filter_drop(self, reason):
        if reason:
            self._dropped[reason] += 1

    def collect(self):
        return {f"rollout/dynamic_filter/drop_{reason}": n for reason, n in self._dropped.items()}
