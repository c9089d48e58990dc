"""The queue of finished groups of --fully-async, for --custom-async-data-buffer-path."""

import asyncio
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from miles.utils.types import Sample


def iter_samples(group):
    for item in group:
        yield from item if isinstance(item, list) else [item]


def first_sample(group):
    return next(iter_samples(group))


def group_oldest_weight_version(group):
    versions = [s.oldest_weight_version for s in iter_samples(group)]
    return min((v for v in versions if v is not None), default=None)


@dataclass(frozen=True)
class DataBufferConstructorInput:
    args: Namespace
    unused_handler_fn: Callable[[list], None]  # --async-unused-samples-handler of a prompt group


@dataclass
class DataBufferInput:
    prompt_group: list  # as before generation
    group: Any  # finished samples


class DataBuffer(ABC):
    """Decides which finished groups are trained on, and when."""

    @abstractmethod
    async def put(self, input):
        """Takes a finished group, or gives it to unused_handler_fn."""

    @abstractmethod
    async def get(self, **context):
        """A group to train on; waits for one."""

    @abstractmethod
    def get_metrics(self):
        """Metrics since the last call."""


class DefaultDataBuffer(DataBuffer):
    """In the order of arrival, without groups that are too stale.  miles has dropped aborted and
    filtered groups before they arrive, and bounds the queue."""

    def __init__(self, input):
        self._args, self._unused_handler_fn = input.args, input.unused_handler_fn
        self._buffer, self._arrived = [], asyncio.Condition()

    async def put(self, input):
        if any(s.status == Sample.Status.ABORTED for s in iter_samples(input.group)):
            self._unused_handler_fn(input.prompt_group)
            return
        async with self._arrived:
            self._buffer.append(input)
            self._arrived.notify_all()

    async def get(self, current_version=None, **_):
        limit = getattr(self._args, "max_weight_staleness", None)
        async with self._arrived:
            while True:
                await self._arrived.wait_for(lambda: self._buffer)
                entry = self._buffer.pop(0)
                oldest = group_oldest_weight_version(entry.group)
                known = limit is not None and oldest is not None and current_version is not None
                if not known or current_version - oldest <= limit:
                    return entry
                self._unused_handler_fn(entry.prompt_group)

    def get_metrics(self):
        return {"rollout/fully_async/queue_size": len(self._buffer)}
