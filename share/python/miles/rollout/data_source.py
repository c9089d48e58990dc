"""Where a run's prompts come from: --data-source-path, and rollout functions."""

import abc
import copy
import json
import os
import random

from miles import host
from miles.utils.types import Sample


class DataSource(abc.ABC):
    """What a rollout takes its prompts from."""

    @abc.abstractmethod
    def get_samples(self, num_samples):
        """The next groups: lists of n_samples_per_prompt samples."""

    @abc.abstractmethod
    def add_samples(self, samples):
        """Takes groups back."""

    def save(self, rollout_id):
        """Called before a snapshot is written."""

    def load(self, rollout_id=None):
        """Called when a run starts; rollout_id is that of the snapshot it continues, or -1."""

    def get_buffer_length(self):
        return None

    def __len__(self):
        return 0


class _Rows:
    """Rows of --prompt-data in the order of an epoch, as a list of samples.  miles reads them."""

    def __init__(self, order):
        self.order = order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, at):
        if isinstance(at, slice):
            rows = self.order[at]
            return [_sample_of_row(r) for r in host.ask("rows", rows=list(rows))] if rows else []
        return self[at : at + 1][0] if at >= 0 else self[len(self) + at]

    def __iter__(self):
        return (self[i] for i in range(len(self)))


def _sample_of_row(row):
    metadata = row["metadata"] or {}
    if row["tools"] is not None:
        metadata["tools"] = row["tools"]
    return Sample(prompt=row["prompt"], label=row["label"], metadata=metadata)


class Dataset:
    """--prompt-data, shuffled for an epoch as Miles does."""

    def __init__(self, args):
        self.seed = args.rollout_seed
        self.n = host.ask("row_count")
        self.samples = _Rows(range(self.n))
        self.origin_samples = self.samples
        self.epoch_id = -1

    def shuffle(self, new_epoch_id):
        if new_epoch_id != self.epoch_id:
            order = list(range(self.n))
            random.Random(self.seed + new_epoch_id).shuffle(order)
            self.samples, self.epoch_id = _Rows(order), new_epoch_id

    def __getitem__(self, at):
        return self.samples[at]

    def __len__(self):
        return self.n


class RolloutDataSource(DataSource):
    """The rows of --prompt-data in order, epoch after epoch."""

    def __init__(self, args):
        self.args = args
        self.epoch_id = self.sample_group_index = self.sample_index = self.sample_offset = 0
        self.metadata = {}
        self.dataset = None
        if args.rollout_global_dataset:
            self.dataset = Dataset(args)
            if args.rollout_shuffle:
                self.dataset.shuffle(self.epoch_id)

    def _next_prompts(self, n):
        if self.dataset is None:
            return [Sample() for _ in range(n)]
        if self.sample_offset + n <= len(self.dataset):
            self.sample_offset += n
            return self.dataset.samples[self.sample_offset - n : self.sample_offset]
        out = self.dataset.samples[self.sample_offset :]
        self.epoch_id += 1
        if self.args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)
        self.sample_offset = n - len(out)
        return out + self.dataset.samples[: self.sample_offset]

    def _number(self, prompt):
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            sample = copy.deepcopy(prompt)
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
            group.append(sample)
        self.sample_group_index += 1
        return group

    def get_samples(self, num_samples):
        return [self._number(p) for p in self._next_prompts(num_samples)]

    def add_samples(self, samples):
        raise RuntimeError(f"{type(self).__name__} takes no samples back: derive from RolloutDataSourceWithBuffer")

    def _state_path(self, folder, rollout_id):
        return os.path.join(folder, "rollout", f"global_dataset_state_dict_{rollout_id}.json")

    def save(self, rollout_id):
        if self.dataset is None:
            return
        path = self._state_path(self.args.save, rollout_id)
        names = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".part", "w") as f:
            json.dump({name: getattr(self, name) for name in names}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".part", path)

    def load(self, rollout_id=None):
        if self.dataset is None or self.args.load is None:
            return
        path = self._state_path(self.args.load, rollout_id)
        if not os.path.exists(path):
            return
        with open(path) as f:
            self.__dict__.update(json.load(f))
        if self.args.rollout_shuffle:
            self.dataset.shuffle(self.epoch_id)

    def __len__(self):
        return len(self.dataset) if self.dataset is not None else 0


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """Groups that were given back come first, as the buffer filter selects them."""

    def __init__(self, args):
        super().__init__(args)
        self.buffer = []
        path = getattr(args, "buffer_filter_path", None)
        self.buffer_filter = host.load(path) if path else pop_first

    def get_samples(self, num_samples):
        out = self.buffer_filter(self.args, None, self.buffer, num_samples) if self.buffer else []
        return out + super().get_samples(num_samples - len(out)) if len(out) < num_samples else out

    def add_samples(self, samples):
        for group in samples:
            assert isinstance(group, list) and len(group) == self.args.n_samples_per_prompt, (
                f"a group that is given back has {self.args.n_samples_per_prompt} samples"
            )
            self.buffer.append(group)

    def update_metadata(self, metadata):
        self.metadata.update(metadata)

    def get_metadata(self):
        return self.metadata

    def get_buffer_length(self):
        return len(self.buffer)


class RunDataSource(RolloutDataSourceWithBuffer):
    """The prompts of the run, which it counts itself and saves with its snapshots."""

    def __init__(self, args):
        self.args = args
        self.buffer, self.metadata = [], {}

    def get_samples(self, num_samples):
        out, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        if len(out) < num_samples:
            groups = host.ask("get_samples", n=num_samples - len(out))
            out += [[Sample.from_dict(s) for s in group] for group in groups]
        return out

    def save(self, rollout_id):
        pass

    def load(self, rollout_id=None):
        pass

    def __len__(self):
        return 0


def pop_first(args, rollout_id, buffer, num_samples):
    """The first groups of the buffer."""
    n = min(len(buffer), num_samples)
    out = buffer[:n]
    del buffer[:n]
    return out
