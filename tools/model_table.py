#!/usr/bin/env python3
"""Rewrites the table of docs/models.md from tools/models.json and the memory plan.

    make build/release/tools/model_memory && python3 tools/model_table.py
"""
import json
import os
import subprocess
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.path.join(ROOT, "build", "release", "tools", "model_memory")
DOC = os.path.join(ROOT, "docs", "models.md")
BEGIN, END = "<!-- table: tools/model_table.py -->\n", "<!-- end of table -->\n"


def size(n):
    return f"{n / 2**30:,.1f}" if n >= 2**30 else f"{n / 2**30:.2f}"


def rows():
    with open(os.path.join(ROOT, "tools", "models.json")) as f:
        models = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        for name, config in models.items():
            path = os.path.join(folder, "config.json")
            with open(path, "w") as f:
                json.dump(config, f)
            line = subprocess.run([PROGRAM, path], check=True, capture_output=True, text=True).stdout
            family, *numbers = line.split("\t")[1:]
            params, weights, training, kv, serving = map(int, numbers)
            yield (f"| {name} | `{family}` | {params / 1e9:.2f} | {size(weights)} | {size(serving)} | "
                   f"{kv / 2**20:,.1f} | {size(training)} |\n")


with open(DOC) as f:
    text = f.read()
before, rest = text.split(BEGIN)
after = rest.split(END)[1]
table = ("| model | `model_type` | parameters, 10^9 | weights, GiB | serving, GiB | KV of 1,024 tokens, MiB | "
         "training, GiB |\n|---|---|---|---|---|---|---|\n" + "".join(rows()))
with open(DOC, "w") as f:
    f.write(before + BEGIN + table + END + after)
