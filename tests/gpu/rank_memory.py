#!/usr/bin/env python3
"""rank_memory.py DIR RANKS: the peak of each rank of a run and of the GPU that they share, from the files of
--record-memory-history, against the memory plans: within 3 %.

rank_memory.py --model DIR: writes a model of 0.6B random weights and prompts for such runs."""
import glob
import json
import os
import sys

GIB = 2**30
MOST = 0.03


def make_model(path):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
    from random_llama import Shape, write_model

    os.makedirs(path + "/model", exist_ok=True)
    write_model(path + "/model", Shape(hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, inner=3072,
                                       vocab=151936))
    with open(path + "/data.jsonl", "w") as f:
        for i in range(64):
            f.write(json.dumps({"text": f"what is {i} + {i}? " * 8, "label": str(2 * i)}) + "\n")


def last(path, rank):
    """The newest record of a rank."""
    end = f"_rank_{rank}.json" if rank else ".json"
    files = [f for f in glob.glob(f"{path}/memory_snapshot_rollout_*{end}") if rank or "_rank_" not in f]
    with open(max(files)) as f:
        return json.load(f)


def line(what, peak, planned):
    off = peak / planned - 1
    print(f"  {what}: peak {peak / GIB:.3f} GiB, planned {planned / GIB:.3f} GiB, {100 * off:+.2f} %")
    return abs(off) <= MOST


def main():
    if sys.argv[1] == "--model":
        return make_model(sys.argv[2])
    ranks = [last(sys.argv[1], r) for r in range(int(sys.argv[2]))]
    good = [line(f"rank {r}", x["peak"], x["total"]) for r, x in enumerate(ranks)]
    good.append(line("the GPU", max(x["device_peak"] for x in ranks), sum(x["total"] for x in ranks)))
    if not all(good):
        for r, x in enumerate(ranks):
            print(f"  rank {r}:", ", ".join(f"{k} {v / 2**20:.0f}" for k, v in x["buffers"].items()), "MiB")
    sys.exit(not all(good))


main()
