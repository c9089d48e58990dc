#!/usr/bin/env python3
"""loop_overhead.py RUN...: where the time of a run went, from its timing.jsonl.

"outside" is what belongs to neither engine nor trainer: prompts and rewards that were
waited for, figures, logs, weights that change hands.  Rounds that save or evaluate are left
out.  For a run one round ahead, a round is compared with the longer of rollout and training.
"""
import json
import sys


def tell(run):
    with open(f"{run}/timing.jsonl") as f:
        rows = [json.loads(line) for line in f]

    def of(row, name):
        return row.get(f"perf/{name}", 0.0) or 0.0

    rows = [r for r in rows if "perf/step_time" in r][1:]  # the first one warms up
    rows = [r for r in rows if of(r, "eval_time") < 1e-4 and of(r, "save_model_time") < 1e-4]
    total = sum(of(r, "step_time") for r in rows)
    engine = sum(of(r, "engine_time") for r in rows)
    train = sum(of(r, "log_probs_time") + of(r, "actor_train_time") for r in rows)
    rollout = sum(of(r, "rollout_time") for r in rows)
    longer = sum(max(of(r, "rollout_time"), of(r, "log_probs_time") + of(r, "actor_train_time"))
                 for r in rows)
    n = max(len(rows), 1)
    print(f"{run}: {len(rows)} rounds of {1e3 * total / n:.2f} ms: engine {1e3 * engine / n:.2f}, "
          f"rollout {1e3 * rollout / n:.2f}, trainer {1e3 * train / n:.2f}")
    if rollout + train > 1.02 * total:
        print(f"    at the same time: a round takes {total / longer:.3f} x the longer of both")
    else:
        print(f"    in turn: outside engine and trainer {100 * (1 - (engine + train) / total):.2f} %")


for name in sys.argv[1:]:
    tell(name)
