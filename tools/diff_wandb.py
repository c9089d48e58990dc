#!/usr/bin/env python3
"""diff_wandb.py --build BUILD - wandb takes the metrics of a run by the command that --use-wandb prints.

The command runs offline; the directory that wandb writes must have every number of metrics.jsonl, and
`wandb sync --dry-run` must find it."""
import argparse
import glob
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile

from wandb.proto import wandb_internal_pb2


def records(path):
    """The records of a .wandb file: a log of LevelDB behind a header of 7 bytes."""
    with open(path, "rb") as f:
        data = f.read()
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4:at + 7])
        parts += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # FULL, LAST
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def logged(path):
    rows = []
    for r in records(path):
        if r.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in r.history.item})
    return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    build = os.path.abspath(p.parse_args().build)
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([build + "/tools/quickstart_make", root, "1"], check=True)
        words = ["train", "--hf-checkpoint", root + "/model", "--num-rollout", "2", "--rollout-batch-size", "2",
                 "--n-samples-per-prompt", "4", "--lr", "1e-3", "--device", "cpu", "--save", root + "/run", "--prompt-data",
                 root + "/prompts.jsonl", "--input-key", "messages", "--label-key", "label", "--apply-chat-template",
                 "--rm-type", "math", "--rollout-max-response-len", "8", "--use-wandb", "--wandb-project", "p", "--wandb-run-id", "abc"]
        done = subprocess.run([build + "/miles", *words], check=True, capture_output=True, text=True, timeout=300)
        command = shlex.split(re.search(r"--use-wandb: python3 (.*) uploads", done.stderr)[1])
        env = dict(os.environ, WANDB_DIR=root, WANDB_SILENT="true")
        subprocess.run([sys.executable, *command, "--offline"], check=True, env=env, timeout=300)
        [offline] = glob.glob(root + "/wandb/offline-run-*-abc")
        rows = logged(offline + "/run-abc.wandb")
        with open(root + "/run/metrics.jsonl") as f:
            lines = [json.loads(line) for line in f]
        assert len(rows) == len(lines) >= 4, (len(rows), len(lines))
        for row, line in zip(rows, lines, strict=True):
            for key, value in line.items():
                if "/" in key:
                    assert row[key] == value or (value is None and row[key] != row[key]), key
            axis = "train/step" if "step" in line else "rollout/step"
            assert row[axis] == line["rollout"], axis
        listed = subprocess.run([os.path.dirname(sys.executable) + "/wandb", "sync", "--dry-run", offline], env=env, check=True,
                                capture_output=True, text=True, timeout=300)
        assert "abc" in listed.stdout + listed.stderr, listed
        print("%d rows" % len(rows))


if __name__ == "__main__":
    main()
