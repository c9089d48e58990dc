#!/usr/bin/env python3
"""dashboard.py --build build/release [--samples 1000000] - how long the dashboard takes to answer each view.

Grows the run.db of a small run to the given number of samples (512 per rollout, 200 tokens each, about 1.5 GB for a million) and
asks for every view several times.  Prints the slowest answer of each."""
import argparse
import json
import pathlib
import random
import sqlite3
import struct
import subprocess
import tempfile
import time
import urllib.request

PER_ROLLOUT, GROUP, TOKENS = 512, 8, 200


def small_run(build, d):
    subprocess.run([build / "tools/quickstart_make", d, "1"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([build / "miles", "train", "--hf-checkpoint", d / "model", "--save", d / "run", "--prompt-data",
                    d / "prompts.jsonl", "--input-key", "messages", "--label-key", "label", "--apply-chat-template",
                    "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rm-type", "zero",
                    "--rollout-max-response-len", "4", "--global-batch-size", "4", "--lr", "1e-5"], check=True,
                   stdout=subprocess.DEVNULL)


def rows(n):
    r = random.Random(1)
    tokens, mask = struct.pack(f"{TOKENS + 50}i", *range(TOKENS + 50)), b"\1" * TOKENS
    logprobs, versions = struct.pack(f"{TOKENS}f", *[-0.5] * TOKENS), struct.pack(f"{TOKENS}q", *[3] * TOKENS)
    answer = "step by step " * 60
    for i in range(n):
        rollout, place = 1 + i // PER_ROLLOUT, i % PER_ROLLOUT
        row = (rollout * 64 + place // GROUP) % 17000
        yield (rollout, place, i, i // GROUP, f"problem {row}: how many?", f"{answer}{r.random()}", '"42"', float(r.random() < 0.5),
               "truncated" if r.random() < 0.1 else "completed", TOKENS, tokens, mask, logprobs, versions, row,
               struct.pack("f", 0.5))


def grow(d, n):
    db = sqlite3.connect(d / "run/run.db")
    db.execute("PRAGMA synchronous = OFF")
    db.executemany("INSERT INTO samples VALUES(" + ", ".join("?" * 16) + ")", rows(n))
    db.executemany("INSERT INTO spans VALUES(?, 'loop', ?, ?, ?)",
                   ((k, name, 1e9 + 60 * k, 1e9 + 60 * k + 50) for k in range(n // PER_ROLLOUT)
                    for name in ("iteration", "rollout", "learn", "log_probs", "actor_train", "update_weights")))
    db.commit()
    db.close()
    line = json.loads((d / "run/metrics.jsonl").read_text().splitlines()[0])
    with open(d / "run/metrics.jsonl", "a") as f:
        for k in range(1, n // PER_ROLLOUT + 1):
            f.write(json.dumps({**line, "rollout": k}) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--samples", type=int, default=1000000)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        d = pathlib.Path(name)
        small_run(o.build, d)
        grow(d, o.samples)
        last, sample = o.samples // PER_ROLLOUT, o.samples - PER_ROLLOUT // 2
        server = subprocess.Popen([o.build / "miles", "dashboard", d / "run", "--port", "0"], stdout=subprocess.PIPE, text=True)
        url = server.stdout.readline().split()[-2]
        views = ["/api/runs", "/api/meta", "/api/advisory",
                 "/api/metrics?points=600&keys=rollout/raw_reward,rollout/response_len/mean,rollout/truncated_ratio",
                 "/api/timeline/phases", "/api/timeline/fleet", f"/api/rollout/{last}/groups", f"/api/rollout/{last}/summary",
                 f"/api/samples?rollout={last}&group={sample // GROUP}", f"/api/rollout/{last}/sample/{sample}/messages",
                 f"/api/rollout/{last}/sample/{sample}/tokens", "/api/samples?row=5", "/api/samples?q=no+such+text",
                 "/api/samples?min_reward=2", "/api/samples?status=truncated"]
        try:
            for v in views:
                times = []
                for _ in range(5):
                    t = time.perf_counter()
                    urllib.request.urlopen(url + v).read()
                    times.append(time.perf_counter() - t)
                print(f"{1000 * max(times):8.1f} ms  {v}")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
