#!/usr/bin/env python3
"""run_directory.py RUN - what a run left behind, read by those it was written for.

TensorBoard finds the figures of metrics.jsonl in the event file, SQLite finds them and all
samples in run.db, and the traces are JSON.
"""
import glob
import json
import math
import sqlite3
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(run):
    rows = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    want = {}
    for row in rows:
        step = row.get("step", row["rollout"])
        for name, value in row.items():
            if "/" in name and value is not None:
                want.setdefault(name, []).append((step, value))
    assert want, "metrics.jsonl is empty"

    board = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0})
    board.Reload()
    for name, points in want.items():
        got = [(e.step, e.value) for e in board.Scalars(name) if not math.isnan(e.value)]
        assert [s for s, _ in got] == [s for s, _ in points], (name, got, points)
        for (_, x), (_, y) in zip(got, points):
            assert math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-30), (name, x, y)

    db = sqlite3.connect(run + "/run.db")
    for name, points in want.items():
        sql = "SELECT coalesce(step, rollout), value FROM metrics WHERE name = ? AND value IS NOT NULL"
        assert db.execute(sql, (name,)).fetchall() == points, name
    assert db.execute("SELECT count(*) FROM samples").fetchone()[0] > 0
    assert db.execute("SELECT count(*) FROM timings").fetchone()[0] > 0
    events = [what for (what,) in db.execute("SELECT what FROM events")]
    assert "at rollout 0" in events[0] and "saved" in events, events
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"

    for trace in glob.glob(run + "/trace_*.json"):
        spans = [e for e in json.load(open(trace)) if e["ph"] == "X"]
        assert spans and all(e["dur"] >= 0 for e in spans), trace
    print("%d figures agree" % len(want))


main(sys.argv[1])
