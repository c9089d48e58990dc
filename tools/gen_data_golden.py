#!/usr/bin/env python3
"""Writes tests/golden/rl: orders drawn by CPython's own random module, and what a data source
hands out, told by a few lines of Python that keep whole lists where the program counts."""
import json
import pathlib
import random

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/rl"


def order(n, seed):
    rows = list(range(n))
    random.Random(seed).shuffle(rows)
    return rows


class Source:
    def __init__(self, n_row, n_sample, seed, shuffled):
        self.n_row, self.n_sample, self.seed, self.shuffled = n_row, n_sample, seed, shuffled
        self.epoch = self.offset = self.n_group = 0
        self.buffer, self.latest = [], []

    def rows(self):
        return order(self.n_row, self.seed + self.epoch) if self.shuffled else list(range(self.n_row))

    def get(self, n):
        self.latest, self.buffer = self.buffer[:n], self.buffer[n:]
        n -= len(self.latest)
        if n > 0:
            picked = self.rows()[self.offset:][:n]
            end = self.offset + n
            if end > self.n_row:
                end = n - len(picked)
                self.epoch += 1
                picked += self.rows()[:end]
            self.offset = end
            for row in picked:
                first = self.n_group * self.n_sample
                self.latest.append({"row": row, "group_index": self.n_group,
                                    "indices": list(range(first, first + self.n_sample))})
                self.n_group += 1
        return {"groups": self.latest,
                "state": {"sample_offset": self.offset, "epoch_id": self.epoch,
                          "sample_group_index": self.n_group,
                          "sample_index": self.n_group * self.n_sample, "buffer": len(self.buffer)}}

    def add_back_first(self, n):
        self.buffer += self.latest[:n]
        return {"buffer": len(self.buffer)}


def shuffles():
    for n, seed, epochs in [(1, 0, [0, 1]), (2, 3, [0, 1, 0]), (10, 42, [0, 1, 2]), (33, -7, [4, 7, 14]),
                            (64, 2**32 - 1, [0, 1]), (65, 2**40 + 3, [5]), (300, 1234, [9])]:
        yield {"args": {"num_rows": n, "seed": seed, "epochs": epochs},
               "out": {"orders": [order(n, seed + e) for e in epochs]}}


def sources():
    rng = random.Random("data source")
    for i in range(8):
        n_row, n_sample, seed, shuffled = rng.randint(1, 12), rng.randint(1, 4), rng.choice([0, 7, 42]), i % 3 > 0
        source, ops, results = Source(n_row, n_sample, seed, shuffled), [], []
        for _ in range(rng.randint(2, 6)):
            back = bool(source.latest) and rng.random() < 0.3
            n = rng.randint(1, len(source.latest)) if back else rng.randint(1, 2 * n_row + 4)
            ops.append({"op": "add_back_first" if back else "get", "n": n})
            results.append(source.add_back_first(n) if back else source.get(n))
        yield {"args": {"num_rows": n_row, "n_samples_per_prompt": n_sample, "rollout_seed": seed,
                        "rollout_shuffle": shuffled, "ops": ops}, "out": {"results": results}}


def main():
    OUT.mkdir(exist_ok=True)
    for name, cases in ("dataset_shuffle", shuffles()), ("data_source", sources()):
        with open(OUT / f"{name}.jsonl", "w") as f:
            for case in cases:
                f.write(json.dumps({"fn": name, "kind": "own", **case}, separators=(",", ":")) + "\n")


main()
