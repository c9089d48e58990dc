#!/usr/bin/env python3
"""Runs and servers in which single calls of malloc, mmap, open, write, fsync and rename fail.

    tests/e2e/faults.py --miles build/release/miles --inject build/release/inject.so [--faults 40]

A run that meets a fault ends with a sentence, or goes on; started again without the fault, it ends in the
bytes of a run that met none.  A server that meets one answers every request while it lives, with the right
tokens or with a status of 500 or more, and answers as before afterwards; one that cannot go on ends with a
sentence.  Neither ends by a signal.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from serve_setup import Server, make_model

KINDS = ["malloc", "mmap", "open", "write", "fsync", "rename"]
ROUNDS = 3


def spread(kinds, counts, n, rng):
    """n faults: all kinds in turn, at random calls; every third persists."""
    kinds = [k for k in kinds if counts[k] > 0]
    return [(kinds[i % len(kinds)], rng.randint(1, counts[kinds[i % len(kinds)]]), i % 3 == 2)
            for i in range(n)]


def read_counts(path):
    with open(path) as f:
        return {k: int(v) for k, v in map(str.split, f)}


def environment(inject, fault=None, count=None):
    env = dict(os.environ, LD_PRELOAD=os.path.abspath(inject))
    if fault:
        env["MILES_FAULT"] = fault
    if count:
        env["MILES_FAULT_COUNT"] = count
    return env


# --- runs ---------------------------------------------------------------------------------


def train(miles, work, save, env=None):
    command = [miles, "train", "--hf-checkpoint", work + "/model", "--prompt-data", work + "/data.jsonl",
               "--label-key", "label", "--apply-chat-template", "--rollout-batch-size", "2",
               "--n-samples-per-prompt", "2", "--rollout-max-response-len", "8", "--rm-type",
               "deterministic_random", "--num-rollout", str(ROUNDS), "--save-interval", "1", "--lr", "1e-3",
               "--save", save, "--load", save, "--device", "cpu"]  # cuBLAS does not survive a failed malloc
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)


def tree(path):
    """What a run leaves that must be the same bytes: the last snapshot and the metrics."""
    files = {}
    for top in [f"iter_{ROUNDS - 1:07d}", "metrics.jsonl"]:
        full = os.path.join(path, top)
        names = [full] if os.path.isfile(full) else [os.path.join(d, f) for d, _, fs in os.walk(full) for f in fs]
        for name in names:
            with open(name, "rb") as f:
                files[os.path.relpath(name, path)] = f.read()
    assert len(files) > 2, files.keys()
    return files


def check_run(miles, inject, work, want, fault, i):
    save = f"{work}/run{i}"
    r = train(miles, work, save, environment(inject, fault))
    said = r.stdout.decode(errors="replace")
    if r.returncode < 0:
        return f"{fault}: ended by signal {-r.returncode}: {said[-400:]}"
    if r.returncode > 0 and not said.strip():
        return f"{fault}: exit status {r.returncode} without a word"
    again = train(miles, work, save)
    if again.returncode != 0:
        return f"{fault}: does not resume: {again.stdout.decode(errors='replace')[-400:]}\nafter: {said[-400:]}"
    if tree(save) != want:
        return f"{fault}: other bytes after resume; it had said: {said[-400:]}"
    shutil.rmtree(save)
    return None


def run_faults(miles, inject, n, rng):
    with tempfile.TemporaryDirectory(prefix="miles-faults-") as work:
        os.mkdir(work + "/model")
        make_model(work + "/model")
        with open(work + "/data.jsonl", "w") as f:
            for i in range(8):
                f.write(json.dumps({"input": f"what is {i}+1?", "label": str(i + 1)}) + "\n")
        count = train(miles, work, work + "/whole", environment(inject, count=work + "/counts"))
        assert count.returncode == 0, count.stdout.decode()
        want, counts = tree(work + "/whole"), read_counts(work + "/counts")
        faults = [f"{k}:{at}{'+' if lasts else ''}" for k, at, lasts in spread(KINDS, counts, n, rng)]
        with ThreadPoolExecutor(2) as pool:
            return [r for r in pool.map(lambda x: check_run(miles, inject, work, want, x[1], x[0]),
                                        enumerate(faults))]


# --- servers ------------------------------------------------------------------------------


def request(i):
    return {"text": f"hello {i}", "sampling_params": {"max_new_tokens": 12, "sampling_seed": i, "ignore_eos": True},
            "return_logprob": True}


def ask(server, i):
    """(status, tokens), or None when there was no whole answer."""
    try:
        status, reply = server.ask("/generate", request(i), timeout=30)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return (status, reply["output_ids"]) if status == 200 else (status, None)


def check_server(miles, inject, want, fault):
    """One server and one fault during 24 requests; the next 12 are answered as without a fault."""
    server = Server(miles, env=environment(inject, fault + "@"), stderr=subprocess.PIPE)
    try:
        os.kill(server.proc.pid, signal.SIGUSR2)
        with ThreadPoolExecutor(4) as pool:
            order = list(range(len(want))) * 2
            got = list(pool.map(lambda i: ask(server, i), order))
        after = [ask(server, i) for i in range(len(want))]
        alive = server.proc.poll() is None
        if alive:
            bad = [i for i, g in zip(order, got) if g is None or (g[0] != 200 and g[0] < 500)]
            bad += [i for i, g in zip(order, got) if g and g[0] == 200 and g[1] != want[i]]
            if bad or [a and a[1] for a in after] != want:
                return f"{fault}: requests {bad} were lost or wrong, afterwards {after}"
        code = server.stop() if alive else server.proc.wait(60)
        said = server.proc.stderr.read()
        if code < 0 or (code > 0 and not said.strip()):
            return f"{fault}: exit status {code}: {said[-400:]}"
        if not alive and "out of memory" not in said:
            return f"{fault}: the server ended: {said[-400:]}"
        return None
    finally:
        server.proc.kill()


def server_faults(miles, inject, n, rng):
    with tempfile.TemporaryDirectory(prefix="miles-faults-") as work:
        with Server(miles, env=environment(inject, "none:0@", work + "/counts")) as server:
            os.kill(server.proc.pid, signal.SIGUSR2)
            want = [ask(server, i)[1] for i in range(12)]
        counts = read_counts(work + "/counts")
    faults = [f"{k}:{at}" for k, at, _ in spread(["malloc", "mmap", "open"], counts, n, rng)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda fault: check_server(miles, inject, want, fault), faults))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    p.add_argument("--inject", required=True)
    p.add_argument("--faults", type=int, default=40, help="half in runs, half in servers")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    a = p.parse_args()
    rng = random.Random(a.seed)
    print(f"seed {a.seed}")
    results = run_faults(a.miles, a.inject, (a.faults + 1) // 2, rng)
    results += server_faults(a.miles, a.inject, a.faults // 2, rng)
    for r in results:
        if r:
            print("FAIL", r)
    failed = sum(r is not None for r in results)
    print(f"{len(results) - failed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
