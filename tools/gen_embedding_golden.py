#!/usr/bin/env python3
"""Writes tests/golden/data/qwen3/embeddings.json: what transformers computes for the golden model.

    tools/gen_embedding_golden.py

The last hidden row of each input, the mean of its rows, and the first 16 numbers of the last row, each divided by
its norm, as Qwen3-Embedding and sentence-transformers do.
"""
import json

import torch
from transformers import AutoModel

DIR = "tests/golden/data/qwen3"
INPUTS = [[5, 17, 42, 9, 63], [1], [70, 3, 3, 8, 80, 21, 44, 2, 60, 11, 33, 7], [12, 34]]


def unit(x):
    return torch.nn.functional.normalize(x, dim=0).tolist()


def main():
    model = AutoModel.from_pretrained(DIR, dtype=torch.float32).eval()
    out = []
    with torch.no_grad():
        for ids in INPUTS:
            rows = model(torch.tensor([ids])).last_hidden_state[0]
            out.append({"ids": ids, "last": unit(rows[-1]), "mean": unit(rows.mean(0)), "last16": unit(rows[-1][:16])})
    with open(DIR + "/embeddings.json", "w") as f:
        json.dump(out, f)


main()
