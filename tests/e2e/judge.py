#!/usr/bin/env python3
"""The judge of --rm-type judge in the process of the run (--judge-model-path).

Its replies are those of `miles serve` with the same model and seed, token for token; a run with
it has the same bytes when it is repeated, resumed, and where judge and training use their memory in
turns; the memory plan includes it."""

import argparse
import filecmp
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from serve_setup import Server  # noqa: E402

HERE = os.path.join(os.path.dirname(__file__), "..", "golden", "preference")
MODEL = os.path.join(HERE, "model")
HOW = ["--rm-type", "judge", "--judge-score-regex", r"[0-9]", "--judge-temperature", "1.5", "--judge-max-tokens", "60"]
HERE_JUDGE = ["--judge-model-path", MODEL]


def run(miles, *args, stdin=None):
    done = subprocess.run([miles, *args], input=stdin, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def grade(miles, work, *flags):
    """The rewards of some samples; where there is none, the message has the judge's reply."""
    samples = "".join(json.dumps({"prompt": f"question {i}", "response": "x" * i + " is 3", "label": str(i), "index": i}) + "\n"
                      for i in range(12))
    code, out, err = run(miles, "reward", *HOW, "--judge-prompt-path", f"{work}/prompt.txt", *flags, stdin=samples)
    assert code == 0, err
    return [re.sub(r'"ms": [^,}]*', "", line) for line in out.splitlines() if line.startswith("{")]


def test_replies_of_a_server(miles, work):
    mine = grade(miles, work, *HERE_JUDGE)
    assert len(mine) == 12 and len(set(mine)) > 3 and '"ok"' in "".join(mine), mine
    assert mine == grade(miles, work, *HERE_JUDGE)
    server = Server(miles, make=lambda _: MODEL)
    try:
        assert mine == grade(miles, work, "--judge-url", server.url + "/v1")
        # no reply has a letter followed by eight digits: all messages quote the replies
        whole = ["--judge-score-regex", r"[a-z]\K[0-9]{8}"]
        texts = grade_texts(miles, work, whole, HERE_JUDGE), grade_texts(miles, work, whole, ["--judge-url", server.url + "/v1"])
        assert texts[0] == texts[1] and "has no score that matches" in texts[0]
    finally:
        server.stop()


def grade_texts(miles, work, how, judge):
    samples = "".join(json.dumps({"prompt": f"q {i}", "response": "y" * i, "index": i}) + "\n" for i in range(6))
    _, out, _ = run(miles, "reward", *HOW, *how, "--judge-prompt-path", f"{work}/prompt.txt", *judge, stdin=samples)
    return re.sub(r'"ms": [^,}]*', "", out)


def train(miles, work, name, rollouts, *flags):
    args = ["train", "--hf-checkpoint", MODEL, "--prompt-data", f"{HERE}/chats.jsonl", "--input-key", "prompt",
            "--apply-chat-template", *HOW, "--judge-prompt-path", f"{work}/prompt.txt", *HERE_JUDGE,
            "--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "8",
            "--lr", "1e-3", "--lr-decay-style", "constant", "--num-rollout", str(rollouts), "--save-interval", "1",
            "--save", f"{work}/{name}", "--load", f"{work}/{name}", *flags]
    code, out, err = run(miles, *args)
    assert code == 0, err
    return out + err


def same(work, a, b):
    assert filecmp.cmp(f"{work}/{a}/metrics.jsonl", f"{work}/{b}/metrics.jsonl", False), (a, b)
    for name in os.listdir(f"{work}/{a}/iter_0000002"):
        pair = (f"{work}/{x}/iter_0000002/{name}" for x in (a, b))
        assert filecmp.cmp(*pair, False), name


def test_runs_are_the_same(miles, work):
    train(miles, work, "whole", 3)
    with open(f"{work}/whole/metrics.jsonl") as f:
        rows = [json.loads(line) for line in f]
    assert all(r["rollout/forward_logp_max_diff"] == 0 for r in rows if "rollout/forward_logp_max_diff" in r)
    assert len({r["rollout/raw_reward"] for r in rows if "rollout/raw_reward" in r}) > 1
    train(miles, work, "parts", 2)
    train(miles, work, "parts", 3)
    same(work, "whole", "parts")
    train(miles, work, "turns", 3, "--colocate")
    same(work, "whole", "turns")


def test_messages(miles, work):
    plan = train(miles, work, "plan", 1, "--dry-run")
    assert "reward models" in plan, plan
    code, out, err = run(miles, "reward", *HOW, "--judge-prompt-path", f"{work}/prompt.txt", *HERE_JUDGE,
                         "--judge-context-length", "16",
                         stdin=json.dumps({"prompt": "p", "response": "r" * 200}) + "\n")
    assert "--judge-context-length allows 16" in out + err, out + err
    code, _, err = run(miles, "reward", "--rm-type", "judge", stdin="")
    assert code != 0 and "--judge-model-path, a checkpoint, or --judge-url" in err, err


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    miles = parser.parse_args().miles
    tests = (test_replies_of_a_server, test_runs_are_the_same, test_messages)
    with tempfile.TemporaryDirectory(prefix="miles-judge-") as work:
        with open(f"{work}/prompt.txt", "w") as f:
            f.write("Grade the answer {response} to {prompt}; expected {label}.\nScore: ")
        for test in tests:
            test(miles, work)
    print(f"{len(tests)} passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
