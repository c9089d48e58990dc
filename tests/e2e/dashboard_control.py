#!/usr/bin/env python3
"""Requests to a run: the learning rate, a snapshot, a pause and a stop take effect, are recorded, and a run that resumes
repeats the learning rate with the same bytes.

    dashboard_control.py --build build/release

The reward function holds a run inside its first rollout until the test has sent its requests."""
import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

KEY = "sesame"
REWARD = """
import os, time
def reward(sample):
    open({held!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    return float(len(sample["response"]) % 3)
"""


def command(build, d, name, *more):
    return [build / "miles", "train", "--hf-checkpoint", d / "model", "--save", d / name, "--prompt-data", d / "prompts.jsonl",
            "--input-key", "messages", "--label-key", "label", "--apply-chat-template", "--num-rollout", "4",
            "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "4",
            "--global-batch-size", "4", "--lr", "1e-3", "--custom-rm-path", d / "reward.py", "--reward-workers", "1", "--lr-decay-style", "constant",
            "--threads", "1", *more]


class Run:
    """A run with a dashboard, held in rollout 0."""

    def __init__(self, build, d, name):
        self.go = d / "go"
        held = d / "held"
        for f in (self.go, held):
            f.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [str(w) for w in command(build, d, name, "--use-miles-dashboard", "--dashboard-port", "0",
                                     "--dashboard-api-key-file", d / "key")], stdout=subprocess.PIPE, text=True)
        self.url = next(line for line in self.process.stdout if line.startswith("dashboard: ")).split()[-1]
        while not held.exists():  # a request that comes before rollout 0 takes effect in rollout 0
            assert self.process.poll() is None
            time.sleep(0.01)

    def ask(self, path, body=None, key=KEY):
        q = urllib.request.Request(self.url + path, data=body and json.dumps(body).encode())
        q.add_header("Authorization", "Bearer " + key)
        q.add_header("Content-Type", "application/json")
        return json.load(urllib.request.urlopen(q))

    def request(self, action, value=0):
        self.ask("/api/control", {"action": action, "value": value})

    def wait_for(self, action):
        while not any(a["action"] == action for a in self.ask("/api/control")["actions"]):
            time.sleep(0.02)

    def release(self):
        self.go.touch()

    def end(self):
        self.process.stdout.read()
        assert self.process.wait() == 0


def bytes_of(run):
    files = [run / "metrics.jsonl", *sorted((run / "iter_0000003").iterdir())]
    return [(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files]


def rows(run, key):
    return [r[key] for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if key in r]


def rewind(run, to):
    """As if the run had died after this snapshot."""
    shutil.rmtree(run / "iter_0000003")
    (run / "latest_checkpointed_iteration.txt").write_text(f"{to}\n")


def resume(build, d, name):
    subprocess.run(command(build, d, name, "--load", d / name), check=True, stdout=subprocess.DEVNULL)


def check_lr(build, d):
    r = Run(build, d, "lr")
    r.request("lr", 2.5e-4)
    r.request("save")
    r.release()
    r.end()
    run = d / "lr"
    actions = [json.loads(x) for x in (run / "control.jsonl").read_text().splitlines()]
    assert [(a["rollout"], a["action"]) for a in actions] == [(0, "save"), (1, "lr")], actions
    assert rows(run, "train/lr-pg_0") == [1e-3, 2.5e-4, 2.5e-4, 2.5e-4]
    assert (run / "iter_0000000").is_dir()
    before = bytes_of(run)
    rewind(run, 0)
    resume(build, d, "lr")
    assert bytes_of(run) == before
    print("ok   a changed learning rate is recorded, and repeated with the same bytes after a resume")


def check_stop(build, d):
    r = Run(build, d, "stop")
    try:
        r.ask("/api/control", {"action": "stop"}, key="wrong")
        raise AssertionError("a wrong key was accepted")
    except urllib.error.HTTPError as e:
        assert e.code == 401
    r.request("stop")
    r.release()
    r.end()
    assert rows(d / "stop", "rollout/raw_reward").__len__() == 1
    resume(build, d, "stop")
    subprocess.run(command(build, d, "whole"), check=True, stdout=subprocess.DEVNULL)
    assert bytes_of(d / "stop") == bytes_of(d / "whole")
    print("ok   a stopped run is saved and resumes with the bytes of one that was not stopped")


def check_pause(build, d):
    r = Run(build, d, "pause")
    r.request("pause")
    r.release()
    r.wait_for("pause")
    assert r.process.poll() is None
    r.request("resume")
    r.end()
    assert bytes_of(d / "pause") == bytes_of(d / "whole")
    print("ok   a paused run goes on when it is told to")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        d = pathlib.Path(name)
        subprocess.run([o.build / "tools/quickstart_make", d, "1"], check=True, stdout=subprocess.DEVNULL)
        (d / "key").write_text(KEY + "\n")
        (d / "key").chmod(0o600)
        (d / "reward.py").write_text(REWARD.format(go=str(d / "go"), held=str(d / "held")))
        check_lr(o.build, d)
        check_stop(o.build, d)
        check_pause(o.build, d)


if __name__ == "__main__":
    main()
