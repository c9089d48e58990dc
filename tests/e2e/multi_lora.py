#!/usr/bin/env python3
"""The multi-LoRA service of `miles train-async`, driven over HTTP as Miles' examples do.

Adapters that train at once get the bytes of `miles train-async` with each alone; kill -9 changes none of
them; what does not work is refused, or ends alone with a sentence.

    tests/e2e/multi_lora.py --miles build/release/miles [--kills 3]"""
import argparse
import filecmp
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from serve_setup import write_tokenizer

QWEN = "tests/golden/adapters/models/qwen3"
WORDS = {"PENDING", "ACTIVE", "RETIRING", "CLEANUP", "COMPLETED"}
FLAGS = ("--target-modules all-linear --lr 1e-2 --rollout-max-response-len 24 --rollout-batch-size 4 "
         "--n-samples-per-prompt 4 --rollout-shuffle --save-interval 1 --device cpu --use-kl-loss "
         "--kl-loss-coef 0.1 --kl-loss-type low_var_kl").split()
FAILS = '''
def reward(args, sample, **kwargs):
    raise ValueError("the grader is out of order")
'''
KEYS = ("name slot version step accumulated_groups registration_id data rank alpha rollout_batch_size "
        "n_samples_per_prompt save input_key label_key metadata_key rm_type custom_rm_path num_step num_epoch "
        "metadata state").split()


class Setup:
    """A model, data, and the adapters of two tenants."""

    def __init__(self, miles, dir):
        self.miles, self.dir = miles, dir
        os.mkdir(dir + "/model")
        for name in os.listdir(QWEN):
            shutil.copy(os.path.join(QWEN, name), dir + "/model")
        write_tokenizer(dir + "/model")
        with open(dir + "/data.jsonl", "w") as f:
            for i in range(24):
                f.write(json.dumps({"text": "count to %d" % i, "label": str(i)}) + "\n")
        with open(dir + "/prompts.jsonl", "w") as f:
            for i in range(10):
                f.write(json.dumps({"question": "say %d" % i, "answer": "a b %d" % i}) + "\n")
        with open(dir + "/bad.jsonl", "w") as f:
            f.write('{"text": "fine", "label": "1"}\nnot json\n')
        with open(dir + "/fails.py", "w") as f:
            f.write(FAILS)
        self.math = {"data": dir + "/data.jsonl", "rank": 4, "alpha": 8, "label_key": "label",
                     "rm_type": "deterministic_random", "num_step": 6}
        self.talk = {"data": dir + "/prompts.jsonl", "rank": 8, "alpha": 16, "input_key": "question",
                     "label_key": "answer", "custom_rm_path": "deterministic_random=1,f1=1", "num_epoch": 3,
                     "rollout_batch_size": 6, "n_samples_per_prompt": 2}

    def alone(self, name, c):
        """The directory of miles train-async with this adapter."""
        save = "%s/alone/%s" % (self.dir, name)
        if os.path.exists(save):
            return save
        batch, n = c.get("rollout_batch_size", 4), c.get("n_samples_per_prompt", 4)
        with open(c["data"]) as f:
            steps = c.get("num_step") or c["num_epoch"] * len(f.readlines()) // batch
        reward = ["--rm-type", c["rm_type"]] if "rm_type" in c else ["--custom-rm-path", c["custom_rm_path"]]
        subprocess.run([self.miles, "train-async", "--hf-checkpoint", self.dir + "/model", *FLAGS, "--prompt-data",
                        c["data"], "--input-key", c.get("input_key", "text"), "--label-key", c["label_key"], *reward,
                        "--lora-rank", str(c["rank"]), "--lora-alpha", str(c["alpha"]), "--rollout-batch-size",
                        str(batch), "--n-samples-per-prompt", str(n), "--num-steps-per-rollout", "1",
                        "--num-rollout", str(steps), "--save", save],
                       check=True, stdout=subprocess.DEVNULL)
        return save

    def same(self, name, c, save):
        """Snapshots and metrics have the bytes of the adapter alone."""
        want = self.alone(name, c)
        iterations = sorted(x for x in os.listdir(want) if x.startswith("iter_"))
        assert iterations == sorted(x for x in os.listdir(save) if x.startswith("iter_")), os.listdir(save)
        files = ["metrics.jsonl"] + [os.path.join(i, f) for i in iterations for f in os.listdir(want + "/" + i)]
        assert "%s/adapter_model.safetensors" % iterations[-1] in files
        equal, differ, missing = filecmp.cmpfiles(want, save, files, shallow=False)
        assert len(equal) == len(files), (name, differ, missing)

    def yaml(self, name, c):
        path = "%s/%s.yaml" % (self.dir, name)
        with open(path, "w") as f:
            f.writelines("%s: %s\n" % (k, v) for k, v in c.items())
        return path


class Service:
    def __init__(self, setup, save, *flags, slots=2):
        self.lines, self.port = [], None
        self.process = subprocess.Popen(
            [setup.miles, "train-async", "--hf-checkpoint", setup.dir + "/model", *FLAGS, "--lora-rank", "8",
             "--multi-lora-n-adapters", str(slots), "--multi-lora-api-port", "0", "--save", save, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"control API listening on http://127.0.0.1:(\d+)", line)
            if found:
                self.port = int(found[1])

    def ask(self, method, path, body=None):
        while self.port is None:
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, path, json.dumps(body) if body is not None else None,
                  {"Content-Type": "application/json"} if body is not None else {})
        reply = c.getresponse()
        text = reply.read()
        c.close()
        return reply.status, json.loads(text)

    def register(self, name, config):
        return self.ask("POST", "/adapter_runs", {"name": name, "config": config})

    def state(self, name):
        status, body = self.ask("GET", "/adapter_runs/state?names=" + name)
        assert status == 200 and set(body["states"]) == {name}
        return body["states"][name]

    def wait(self, name, state="COMPLETED"):
        while True:
            now = self.state(name)
            assert now in WORDS, now
            if now == state:
                return self.ask("GET", "/adapter_runs/" + name)[1]
            time.sleep(0.05)

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.end()

    def end(self):
        code = self.process.wait(timeout=300)
        self.reader.join()
        return code


def test_tenants(setup):
    """Two tenants at once, registered inline and from a file; a third one finds no slot, and then one."""
    save = setup.dir + "/tenants"
    s = Service(setup, save)
    assert s.ask("GET", "/health") == (200, {"status": "healthy"})
    assert s.ask("GET", "/adapter_runs") == (200, {"adapters": []})
    assert s.register("math", setup.math) == (200, {"name": "math", "slot": 0})
    assert s.ask("POST", "/adapter_runs", {"name": "talk", "yaml_path": setup.yaml("talk", setup.talk)}) == (
        200, {"name": "talk", "slot": 1})
    status, body = s.register("third", setup.math)
    if s.state("math") != "COMPLETED" and s.state("talk") != "COMPLETED":
        assert (status, body) == (409, {"detail": "No free adapter slots (max 2)"}), (status, body)
    for name in "math", "talk":
        x = s.wait(name)
        assert set(x) == set(KEYS), sorted(x)
        assert x["version"] is None and x["step"] == (6 if name == "math" else 5), x
        assert x["save"] == "%s/adapters/%s" % (save, name)
    if status == 409:
        assert s.register("third", setup.math)[0] == 200
    s.wait("third")
    assert [x["name"] for x in s.ask("GET", "/adapter_runs")[1]["adapters"]].count("third") == 1
    assert s.stop() == 0, "".join(s.lines)
    setup.same("math", setup.math, save + "/adapters/math")
    setup.same("talk", setup.talk, save + "/adapters/talk")
    setup.same("math", setup.math, save + "/adapters/third")


def refused(reply, status, *words):
    assert reply[0] == status, reply
    text = json.dumps(reply[1])
    assert all(w in text for w in words), reply


def test_refusals(setup):
    """What does not fit is refused; a reward that fails ends its adapter alone."""
    save, m = setup.dir + "/refusals", setup.math
    s = Service(setup, save, slots=3)
    refused(s.ask("POST", "/adapter_runs", {"name": "x"}), 400, "Exactly one of")
    refused(s.ask("POST", "/adapter_runs", {"name": "x", "config": m, "yaml_path": "x"}), 400, "Exactly one of")
    refused(s.ask("POST", "/adapter_runs", {"name": "x", "yaml_path": setup.dir + "/none.yaml"}), 400, "none.yaml")
    refused(s.ask("POST", "/adapter_runs", {"config": m}), 422, "name")
    refused(s.register("x", {"rank": 4}), 422, "data")
    refused(s.register("x", m | {"rank": "4"}), 422, "rank", "a whole number")
    refused(s.register("x", m | {"colour": 1}), 422, "colour")
    refused(s.register("a/b", m), 400, "Adapter name 'a/b' is invalid")
    refused(s.register("x", m | {"rank": 9}), 400, "rank 9 exceeds the allocated maximum rank 8")
    refused(s.register("x", m | {"rank": 0}), 400, "rank must be a positive integer")
    refused(s.register("x", m | {"alpha": -1}), 400, "positive alpha")
    refused(s.register("x", m | {"num_step": 0}), 400, "num_step must be a positive integer")
    refused(s.register("x", m | {"data": setup.dir + "/nothing.jsonl"}), 400, "nothing.jsonl", "does not exist")
    refused(s.register("x", m | {"data": setup.dir + "/bad.jsonl"}), 400, "bad.jsonl:2")
    refused(s.register("x", m | {"input_key": "question"}), 400, "question")
    refused(s.register("x", m | {"rm_type": "no_such_reward"}), 400, "no_such_reward")
    refused(s.register("x", m | {"rm_type": None}), 400, "has no reward config")
    refused(s.ask("GET", "/adapter_runs/nope"), 404, "Adapter 'nope' not registered")
    refused(s.ask("DELETE", "/adapter_runs/nope"), 404, "Adapter 'nope' not registered")
    refused(s.ask("GET", "/nothing"), 404, "Not Found")
    refused(s.ask("PUT", "/adapter_runs"), 405, "Method Not Allowed")
    assert s.ask("GET", "/adapter_runs/state?names=nope") == (200, {"states": {"nope": None}})
    assert s.register("long", m | {"num_step": 100000})[0] == 200
    refused(s.register("long", m), 400, "Adapter 'long' already registered")
    refused(s.register("other", m | {"save": save + "/adapters/long"}), 400, "already used by adapter 'long'")
    broken = {k: v for k, v in m.items() if k != "rm_type"} | {"custom_rm_path": setup.dir + "/fails.py:reward"}
    assert s.register("broken", broken)[0] == 200
    assert s.register("math", m)[0] == 200
    x = s.wait("broken")
    assert "reward" in x["error"], x
    s.wait("math")
    before = s.ask("GET", "/adapter_runs/long")[1]
    while s.ask("GET", "/adapter_runs/long")[1]["step"] <= before["step"]:
        time.sleep(0.05)
    assert s.state("long") == "ACTIVE"
    assert s.ask("DELETE", "/adapter_runs/long") == (200, {"status": "ok", "name": "long"})
    x = s.wait("long")
    assert "error" not in x and 0 < x["step"] < 100000
    assert os.path.isdir("%s/adapters/long/iter_%07d" % (save, x["step"] - 1))
    assert s.register("long", m | {"num_step": 2})[0] == 200  # goes on from its snapshot
    assert s.wait("long")["step"] == x["step"] + 2
    assert s.stop() == 0
    setup.same("math", m, save + "/adapters/math")


def kill_service(setup, save, flags, draw, of_s):
    """Starts the service and kills it; True: it had ended."""
    s = Service(setup, save, *flags)
    try:
        s.process.wait(timeout=draw.uniform(0, of_s))
    except subprocess.TimeoutExpired:
        s.process.kill()
    code = s.end()
    assert code in (0, -signal.SIGKILL), "".join(s.lines)
    return code == 0


def test_kills(setup, n):
    """kill -9 at any time: the adapters get the bytes of a run that was never killed."""
    draw, save, done, began = random.Random(7), setup.dir + "/kills", 0, time.time()
    flags = ["--multi-lora-disable-service-mode", "--multi-lora-adapter", "math", setup.yaml("math", setup.math),
             "--multi-lora-adapter", "talk", setup.yaml("talk", setup.talk)]
    s = Service(setup, setup.dir + "/unkilled", *flags)
    assert s.end() == 0, "".join(s.lines)
    of_s = time.time() - began
    while done < n:
        shutil.rmtree(save, ignore_errors=True)
        while done < n and not kill_service(setup, save, flags, draw, of_s):
            done += 1
        s = Service(setup, save, *flags)
        assert s.end() == 0, "".join(s.lines)
        setup.same("math", setup.math, save + "/adapters/math")
        setup.same("talk", setup.talk, save + "/adapters/talk")
    print("%d kills" % done)


def test_stop(setup):
    """SIGTERM saves; a service that starts again goes on with what is registered."""
    save, flags = setup.dir + "/stop", ["--multi-lora-disable-service-mode"]
    s = Service(setup, save)
    assert s.register("math", setup.math)[0] == 200
    assert s.stop() == 0, "".join(s.lines)
    s = Service(setup, save, *flags)
    assert s.end() == 0, "".join(s.lines)
    setup.same("math", setup.math, save + "/adapters/math")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--kills", type=int, default=0, help="kill the service this often, and test nothing else")
    args = parser.parse_args()
    tests = [lambda s: test_kills(s, args.kills)] if args.kills else [
        test_tenants, test_refusals, test_stop, lambda s: test_kills(s, 2)]
    with tempfile.TemporaryDirectory(prefix="miles-multi-lora-") as dir:
        setup = Setup(os.path.abspath(args.miles), dir)
        for t in tests:
            t(setup)
    print("%d passed, 0 failed, 0 skipped" % len(tests))


if __name__ == "__main__":
    main()
