#!/usr/bin/env python3
"""check_trace.py FILE N [TOLERANCE_S] - a trace of N ranks: a row for each, with collectives in one time."""
import json
import sys


def main():
    path, n, slack_us = sys.argv[1], int(sys.argv[2]), 1e6 * float((sys.argv[3:] or ["0.5"])[0])
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    rows = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert rows == {r + 1: f"rank {r}" for r in range(n)}, rows
    lanes = {(e["pid"], e["args"]["name"]): e["tid"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    calls = []
    for pid in rows:
        for lane in ("rounds", "training", "collectives"):
            tid = lanes[pid, lane]
            assert any(e["pid"] == pid and e["tid"] == tid for e in spans), f"{rows[pid]}: no spans in {lane}"
        calls.append([e for e in spans if e["pid"] == pid and e["tid"] == lanes[pid, "collectives"]
                      and e["name"] == "barrier" and e["args"]["group"] == "the job"])
    # A barrier ends on each rank after it has begun on all.  Rank 0 also writes those after the last rollout.
    counts = [len(c) for c in calls]
    assert counts[1] > 0 and len(set(counts[1:])) == 1 and counts[0] >= counts[1], counts
    for at in zip(*calls):
        begun = max(e["ts"] for e in at)
        for rank, e in enumerate(at):
            late = begun - (e["ts"] + e["dur"])
            assert late <= slack_us, f"rank {rank}: a barrier ends {late / 1e6:.3f} s before it has begun on all ranks"
    print(f"{path}: {len(spans)} spans of {n} ranks, {counts[1]} barriers in order")


if __name__ == "__main__":
    main()
