#!/usr/bin/env python3
"""wandb_upload.py RUN [--project P] [--entity E] [--id ID] [--offline] - gives the metrics of a run to wandb.

RUN is the directory of --save; metrics.jsonl in it has the metrics of every rollout, train step and
evaluation.  They are uploaded, or with --offline written to wandb/offline-run-*, which `wandb sync` uploads
later.  wandb's own environment variables (WANDB_API_KEY, WANDB_BASE_URL, WANDB_DIR, WANDB_NAME,
WANDB_RUN_GROUP) apply.  Needs the Python package wandb."""
import argparse
import json
import os

import wandb

AXES = {"train/*": "train/step", "rollout/*": "rollout/step", "passrate/*": "rollout/step", "eval/*": "eval/step"}


def read_json(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def rows(path):
    """The metrics of each line with the positions on their axes."""
    n_step = 0
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            rollout = row.pop("rollout", None)
            if row.pop("step", None) is not None:
                row["train/step"] = n_step
                n_step += 1
            for kind in ("rollout", "eval"):
                if rollout is not None and any(key.startswith(kind + "/") for key in row):
                    row[kind + "/step"] = rollout
            yield row


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run")
    p.add_argument("--project")
    p.add_argument("--entity")
    p.add_argument("--id")
    p.add_argument("--offline", action="store_true")
    a = p.parse_args()
    metrics = a.run + "/metrics.jsonl"
    if not os.path.exists(metrics):
        raise SystemExit(f"{metrics} is missing: name the directory of --save of a run")
    run = wandb.init(project=a.project, entity=a.entity, id=a.id, resume="allow" if a.id else None,
                     mode="offline" if a.offline else None, config=read_json(a.run + "/flags.json"))
    for name, axis in AXES.items():
        run.define_metric(axis)
        run.define_metric(name, step_metric=axis)
    for row in rows(metrics):
        run.log(row)
    run.finish()


if __name__ == "__main__":
    main()
