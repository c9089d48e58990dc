"""The prompts of a run, for rollout functions."""

import abc

from miles import host
from miles.utils.types import Sample


class DataSource(abc.ABC):
    """What a rollout function takes its prompts from."""

    @abc.abstractmethod
    def get_samples(self, num_samples):
        """The next groups: lists of n_samples_per_prompt samples."""

    @abc.abstractmethod
    def add_samples(self, samples):
        """Takes groups back."""

    def save(self, rollout_id):
        """Called with a snapshot."""

    def load(self, rollout_id=None):
        """Called when a run continues."""

    def __len__(self):
        return 0


class RolloutDataSource(DataSource):
    """The rows of --prompt-data, numbered by the run."""

    def __init__(self, args):
        self.args = args
        self.buffer = []

    def get_samples(self, num_samples):
        out, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        if len(out) < num_samples:
            groups = host.ask("get_samples", n=num_samples - len(out))
            out += [[Sample.from_dict(s) for s in group] for group in groups]
        return out

    def add_samples(self, samples):
        self.buffer += samples

    def get_buffer_length(self):
        return len(self.buffer)


RolloutDataSourceWithBuffer = RolloutDataSource


def pop_first(args, rollout_id, buffer, num_samples):
    """The first groups of the buffer."""
    n = min(len(buffer), num_samples)
    out = buffer[:n]
    del buffer[:n]
    return out
