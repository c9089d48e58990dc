#!/usr/bin/env python3
"""`miles tinker` with the `tinker` SDK: training, sampling, tenants, checkpoints, kills, retries, bad input.

    tools/with-python.sh tinker tests/e2e/tinker_client.py --miles build/release/miles

The parts that need PyTorch, custom losses, run where it is installed.
"""
import argparse
import json
import math
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

os.environ.setdefault("TINKER_API_KEY", "tml-test")
os.environ["TINKER_TELEMETRY"] = "0"
import tinker  # noqa: E402
from tinker import types  # noqa: E402

from serve_setup import make_model  # noqa: E402

BASE = "tiny/llama"
TOKENS = [(7 * i + 3) % 60 for i in range(24)]
ADAM = {"learning_rate": 5e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


class Service:
    """`miles tinker` on a free port."""

    def __init__(self, miles, dir, *flags):
        self.args = [miles, "tinker", "--model-path", dir + "/model", "--device", "cpu", "--save", dir + "/runs",
                     "--port", "0", *(() if "--served-model-name" in flags else ("--served-model-name", BASE)), *flags]
        self.dir = dir
        self.start()

    def start(self):
        self.proc = subprocess.Popen(self.args, stdout=subprocess.PIPE, text=True)
        self.url = re.search(r"http://\S+", self.proc.stdout.readline()).group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def client(self):
        return tinker.ServiceClient(base_url=self.url)

    def post(self, path, body):
        request = urllib.request.Request(self.url + "/api/v1/" + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        assert self.proc.wait(timeout=120) == 0


def datum(tokens, **inputs):
    n = len(tokens) - 1
    inputs = {k: v if isinstance(v, list) else [float(v)] * n for k, v in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": tokens[1:], **inputs})


def text(shift):
    return [(5 * i + 11 * shift) % 61 for i in range(20 + shift)]


def steps(client, data, n, loss="cross_entropy", config=None):
    """n optimizer steps; the losses before each."""
    result = []
    for _ in range(n):
        passed = client.forward_backward(data, loss, config)
        done = client.optim_step(types.AdamParams(**ADAM))
        result.append(passed.result().metrics["loss:sum"])
        done.result()
    return result


def logprobs(client, tokens):
    """Of all tokens but the first, by the trainer."""
    return client.forward([datum(tokens, weights=1)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()


def files(service, uri):
    """The bytes of a checkpoint."""
    run, kind, name = uri[len("tinker://"):].split("/")
    top = f"{service.dir}/runs/{run}/{kind}/{name}"
    found = {}
    for at, _, names in os.walk(top):
        for n in names:
            with open(os.path.join(at, n), "rb") as f:
                found[os.path.relpath(os.path.join(at, n), top)] = f.read()
    assert found, top
    return found


def made(client):
    """A client; since SDK 0.38 calls that make one return its future."""
    return client.result() if hasattr(client, "result") else client


def fails(future, *words):
    try:
        future.result() if hasattr(future, "result") else made(future())
    except Exception as e:  # the client shows the sentence
        for w in words:
            assert w in str(e), (w, str(e))
        return
    raise AssertionError(f"no error: {words}")


def test_supervised(s):
    client = s.client()
    models = client.get_server_capabilities().supported_models
    assert [m.model_name for m in models] == [BASE] and models[0].max_context_length == 512
    t = made(client.create_lora_training_client(base_model=BASE, rank=8))
    assert t.get_info().lora_rank == 8 and t.get_info().model_name == BASE
    losses = steps(t, [datum(TOKENS, weights=1), datum(text(1), weights=1)], 10)
    assert losses[-1] < 0.5 * losses[0], losses


def test_equal(s):
    """Log-probs of samples and of prompts are those of the trainer, to the bit."""
    client = s.client()
    t = made(client.create_lora_training_client(base_model=BASE, rank=4))
    steps(t, [datum(TOKENS, weights=1)], 3)
    sampler = made(t.save_weights_and_get_sampling_client())
    want = logprobs(t, TOKENS)
    assert sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result() == [None, *want]
    last = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS), prompt_logprobs_last_n=3).result()
    assert last == [None] * (len(TOKENS) - 3) + want[-3:]
    reply = sampler.sample(types.ModelInput.from_ints(TOKENS[:6]), 3, types.SamplingParams(max_tokens=8, seed=3),
                           include_prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3).result()
    assert reply.prompt_logprobs == [None, *want[:5]] and len(reply.sequences) == 3
    assert reply.topk_prompt_logprobs[0] is None and all(len(x) == 2 for x in reply.topk_prompt_logprobs[1:])
    assert len({tuple(x.tokens) for x in reply.sequences}) > 1
    for x in reply.sequences:
        assert x.logprobs == logprobs(t, TOKENS[:6] + x.tokens)[5:]
        assert all(len(k) == 3 and k[0][1] >= k[1][1] >= k[2][1] for k in x.topk_logprobs)
    again = sampler.sample(types.ModelInput.from_ints(TOKENS[:6]), 3, types.SamplingParams(max_tokens=8, seed=3)).result()
    assert [x.tokens for x in again.sequences] == [x.tokens for x in reply.sequences]
    ids = types.TensorData(data=[5, -1] * (len(TOKENS) - 1), dtype="int64", shape=[len(TOKENS) - 1, 2])
    got = sampler.sample(types.ModelInput.from_ints(TOKENS), 1, types.SamplingParams(max_tokens=1, temperature=0.5),
                         include_prompt_logprobs=True, target_prompt_logprobs=ids).result()
    five = [datum(TOKENS[:i + 1] + [5], weights=1) for i in range(len(TOKENS) - 1)]
    five = t.forward(five, "cross_entropy").result().loss_fn_outputs
    got_ids = got.target_prompt_logprobs.tolist()
    assert [row[0] for row in got_ids] == [x["logprobs"].tolist()[-1] for x in five]
    assert all(math.isnan(row[1]) for row in got_ids) and got.prompt_logprobs == [None, *want]
    base = made(client.create_sampling_client(base_model=BASE))
    assert base.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()[1:] != want
    assert base.get_base_model() == BASE
    stopped = base.sample(types.ModelInput.from_ints([3]), 1, types.SamplingParams(
        max_tokens=200, temperature=1, seed=1, stop=list(range(30)))).result().sequences[0]
    assert stopped.stop_reason == "stop" and stopped.tokens[-1] < 30 <= min(stopped.tokens[:-1], default=30)


def test_rl(s):
    """importance_sampling: the model learns to say one token."""
    t = made(s.client().create_lora_training_client(base_model=BASE, rank=8))
    rewards = []
    for _ in range(12):
        sampler = made(t.save_weights_and_get_sampling_client())
        reply = sampler.sample(types.ModelInput.from_ints([1, 2]), 24, types.SamplingParams(max_tokens=4, stop=[])).result()
        reward = [x.tokens.count(7) / 4 + sum(y < 30 for y in x.tokens) / 40 for x in reply.sequences]
        mean = sum(reward) / len(reward)
        rewards.append(mean)
        data = [datum([1, 2] + x.tokens, logprobs=[0.0] + x.logprobs, advantages=[0.0] + [r - mean] * 4)
                for x, r in zip(reply.sequences, reward)]
        t.forward_backward(data, "importance_sampling").result()
        t.optim_step(types.AdamParams(**{**ADAM, "learning_rate": 2e-2})).result()
    assert sum(rewards[-3:]) > 2 * sum(rewards[:3]), rewards


def test_losses(s):
    """Losses and their gradients, against cross_entropy with the weights of the derivative."""
    client = s.client()
    q = [-2.0 - 0.1 * i for i in range(len(TOKENS) - 1)]
    adv = [1.0 if i % 3 else -0.5 for i in range(len(TOKENS) - 1)]
    p = logprobs(made(client.create_lora_training_client(base_model=BASE, rank=4, seed=9)), TOKENS)
    r = [math.exp(a - b) for a, b in zip(p, q)]
    limit = lambda x, low, high: min(max(x, low), high)  # noqa: E731
    clipped = [min(x * a, limit(x, 0.8, 1.2) * a) for x, a in zip(r, adv)]
    tight = [min(x * a, limit(x, 0.5, 0.9) * a) for x, a in zip(r, adv)]
    cases = [("importance_sampling", None, [x * a for x, a in zip(r, adv)], None),
             ("ppo", None, [x * a if x * a <= limit(x, 0.8, 1.2) * a else 0 for x, a in zip(r, adv)], -sum(clipped)),
             ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 0.9},
              [x * a if x * a <= limit(x, 0.5, 0.9) * a else 0 for x, a in zip(r, adv)], -sum(tight)),
             ("cispo", None, [limit(x, 0, 4) * a for x, a in zip(r, adv)],
              -sum(limit(x, 0, 4) * a * y for x, a, y in zip(r, adv, p))),
             ("dro", {"beta": 0.3}, [a - 0.3 * (x - y) for a, x, y in zip(adv, p, q)],
              -sum(a * x - 0.15 * (x - y) ** 2 for a, x, y in zip(adv, p, q)))]
    for name, config, weights, loss in cases:
        a = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=9))
        b = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=9))
        got = steps(a, [datum(TOKENS, logprobs=q, advantages=adv)], 1, name, config)[0]
        steps(b, [datum(TOKENS, weights=weights)], 1)
        want = -sum(weights) if loss is None else loss
        assert abs(got - want) < 1e-4 * max(1, abs(want)), (name, got, want)
        x, y = logprobs(a, TOKENS), logprobs(b, TOKENS)
        assert max(abs(i - j) for i, j in zip(x, y)) < 1e-4, name


def test_targets(s):
    """Targets that are not the next tokens, and several for each position."""
    client = s.client()
    t = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=2))
    inputs = types.ModelInput.from_ints(TOKENS[:4])
    two = types.Datum(model_input=inputs, loss_fn_inputs={
        "target_tokens": types.TensorData(data=[1, 2, 3, 4, 5, 6, 7, 8], dtype="int64", shape=[4, 2]),
        "weights": types.TensorData(data=[0.5] * 8, dtype="float32", shape=[4, 2])})
    odd = [types.Datum(model_input=inputs, loss_fn_inputs={"target_tokens": x, "weights": [0.5] * 4})
           for x in ([1, 3, 5, 7], [2, 4, 6, 8])]
    both = t.forward([two], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    each = [x["logprobs"].tolist() for x in t.forward(odd, "cross_entropy").result().loss_fn_outputs]
    assert both == [list(x) for x in zip(*each)]
    u = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=2))
    assert abs(steps(t, [two], 1)[0] - steps(u, odd, 1)[0]) < 1e-6
    assert logprobs(t, TOKENS) == logprobs(u, TOKENS)


def test_custom(s):
    """A custom loss is a forward pass, its gradient by PyTorch, and cross_entropy with these weights."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    client = s.client()
    a, b = (made(client.create_lora_training_client(base_model=BASE, rank=4, seed=4)) for _ in range(2))

    def loss(data, logprobs_list):
        total = -sum(2.0 * x.sum() for x in logprobs_list)
        return total, {"mine": total.item()}

    got = a.forward_backward_custom([datum(TOKENS)], loss).result()
    assert got.metrics["mine"] == got.metrics["loss:sum"]
    a.optim_step(types.AdamParams(**ADAM)).result()
    steps(b, [datum(TOKENS, weights=2)], 1)
    assert files(s, a.save_state("x").result().path) == files(s, b.save_state("x").result().path)


def train_tenant(client, seed, out):
    """Supervised steps, a sample, a policy gradient step, a state."""
    t = made(client.create_lora_training_client(base_model=BASE, rank=4 + 4 * (seed % 2), seed=seed))
    steps(t, [datum(text(seed + i), weights=1) for i in range(5)], 4)
    sampler = made(t.save_weights_and_get_sampling_client())
    reply = sampler.sample(types.ModelInput.from_ints(text(seed)[:5]), 4, types.SamplingParams(max_tokens=6, stop=[])).result()
    data = [datum(text(seed)[:5] + x.tokens, logprobs=[0.0] * 4 + x.logprobs, advantages=[0.0] * 4 + [i - 1.5] * 6)
            for i, x in enumerate(reply.sequences)]
    steps(t, data, 2, "ppo")
    out[seed] = t.save_state("end").result().path, [x.tokens for x in reply.sequences]


def test_tenants(s):
    """Tenants that train at once get the bytes of each alone."""
    alone, together = {}, {}
    for seed in 1, 2, 3:
        train_tenant(s.client(), seed, alone)
    threads = [threading.Thread(target=train_tenant, args=(s.client(), seed, together)) for seed in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed in 1, 2, 3:
        assert together[seed][1] == alone[seed][1], seed
        assert files(s, together[seed][0]) == files(s, alone[seed][0]), seed


def test_kill(s):
    """A state survives kill -9, and training continues as if nothing had happened."""
    data = [datum(text(i), weights=1) for i in range(4)]
    t = made(s.client().create_lora_training_client(base_model=BASE, rank=4, seed=6))
    steps(t, data, 3)
    half = t.save_state("half").result().path
    named = t.save_weights_for_sampler("named").result().path
    want = logprobs(t, TOKENS)
    t.forward_backward(data, "cross_entropy").result()  # gradients are not part of a state
    s.kill()
    s.start()
    client = s.client()
    again = made(client.create_training_client_from_state_with_optimizer(half))
    assert logprobs(again, TOKENS) == want
    steps(again, data, 2)
    whole = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=6))
    steps(whole, data, 5)
    assert files(s, again.save_state("end").result().path) == files(s, whole.save_state("end").result().path)
    weights = made(client.create_training_client_from_state(half))
    assert logprobs(weights, TOKENS) == want
    sampler = made(client.create_sampling_client(model_path=named))
    assert sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()[1:] == want
    rest = tinker.RestClient(base_url=s.url)
    external = again.save_weights_external("out").result().path
    urls = rest.get_external_weights_urls(external).result().urls
    for name, data in files(s, external).items():
        with urllib.request.urlopen(urls[name], timeout=60) as r:
            assert r.read() == data, name
    run = half[len("tinker://"):].split("/")[0]
    found = rest.list_checkpoints(run).result().checkpoints
    assert sorted(c.tinker_path for c in found) == sorted([half, named])
    rest.delete_checkpoint_from_tinker_path(named).result()
    fails(lambda: client.create_sampling_client(model_path=named), "does not exist")
    fails(lambda: client.create_training_client_from_state(half + "x"), "does not exist")


def test_kills(s):
    """Kills while a pass, a step or a save runs: training continues from the last state to the same bytes."""
    data = [datum(text(i), weights=1) for i in range(4)]
    whole = made(s.client().create_lora_training_client(base_model=BASE, rank=4, seed=12))
    steps(whole, data, 8)
    want = files(s, whole.save_state("end").result().path)
    t = made(s.client().create_lora_training_client(base_model=BASE, rank=4, seed=12))
    saved = t.save_state("0").result().path
    for done in range(8):
        steps(t, data, 1)
        unheard = [lambda: t.save_state("next"), lambda: t.forward_backward(data, "cross_entropy"),
                   lambda: t.optim_step(types.AdamParams(**ADAM))][done % 3]
        last, saved = saved, t.save_state("kept").result().path
        assert last != saved
        unheard()
        s.kill()
        s.start()
        t = made(s.client().create_training_client_from_state_with_optimizer(saved))
    assert files(s, t.save_state("end").result().path) == want


class KilledTenant:
    """A step and a save per round; the server may die at any time of it."""

    def __init__(self, s, seed):
        self.s, self.rank, self.seed = s, 4 + 4 * (seed % 2), seed
        self.data = [datum(text(seed + i), weights=1) for i in range(4)]
        self.client = self.create()
        self.path, self.n_step = self.client.save_state("0").result().path, 0

    def create(self):
        return self.s.client().create_lora_training_client(base_model=BASE, rank=self.rank, seed=self.seed)

    def begin_step(self):
        """Sends a pass, a step and a save; returns the future of the save."""
        self.client.forward_backward(self.data, "cross_entropy")
        self.client.optim_step(types.AdamParams(**ADAM))
        return self.client.save_state(str(self.n_step + 1))

    def resume(self):
        """From the state of the step, if it is complete, or from the one before."""
        root = self.path.rsplit("/", 1)[0]
        names = [c.checkpoint_id for c in tinker.RestClient(base_url=self.s.url).list_checkpoints(
            root[len("tinker://"):].split("/")[0]).result().checkpoints]
        if "weights/%d" % (self.n_step + 1) in names:
            self.n_step += 1
        self.client = self.s.client().create_training_client_from_state_with_optimizer("%s/%d" % (root, self.n_step))
        self.path = self.client.save_state(str(self.n_step)).result().path  # in the run of the new client

    def alone(self, n):
        client = self.create()
        steps(client, self.data, n)
        return files(self.s, client.save_state("end").result().path)


def test_tenant_kills(s, n):
    """kill -9 at any time while two tenants train and save: both get the bytes of each alone.  Every second
    kill comes after one of them has saved, so that both go on."""
    draw, tenants = random.Random(3), [KilledTenant(s, 21), KilledTenant(s, 22)]
    for i in range(n):
        saves = [t.begin_step() for t in tenants]
        if i % 2:
            saves[i // 2 % 2].result()
        else:
            time.sleep(draw.uniform(0, 0.6))
        s.kill()
        s.start()
        for t in tenants:
            t.resume()
    print("%d kills, steps %s" % (n, [t.n_step for t in tenants]))
    assert all(0 < t.n_step <= n for t in tenants)
    for t in tenants:
        assert files(s, t.path) == t.alone(t.n_step)


def future_of(s, request_id):
    return s.post("retrieve_future", {"request_id": request_id})


def test_retries(s):
    """A request that is repeated runs once; requests run in the order of their numbers."""
    client = s.client()
    t = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=8))
    once = made(client.create_lora_training_client(base_model=BASE, rank=4, seed=8))
    for x in t, once:
        x.forward_backward([datum(TOKENS, weights=1)], "cross_entropy").result()
    adam = {"adam_params": ADAM, "type": "optim_step", "model_id": t.model_id}
    status, later = s.post("save_weights", {"model_id": t.model_id, "path": "x", "seq_id": 3})
    assert status == 200
    first = s.post("optim_step", {**adam, "seq_id": 2})
    assert first == s.post("optim_step", {**adam, "seq_id": 2}) and first[0] == 200
    assert future_of(s, first[1]["request_id"]) == future_of(s, first[1]["request_id"])
    once.optim_step(types.AdamParams(**ADAM)).result()
    saved = future_of(s, later["request_id"])[1]["path"]
    assert files(s, saved) == files(s, once.save_state("x").result().path)
    assert s.post("optim_step", {**adam, "seq_id": 2}) == first
    assert future_of(s, "nobody:1")[0] == 410
    session = s.post("create_session", {"tags": []})[1]["session_id"]
    create = {"session_id": session, "model_seq_id": 0, "base_model": BASE, "lora_config": {"rank": 4}}
    assert s.post("create_model", create) == s.post("create_model", create)
    assert s.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})[0] == 200
    assert s.post("session_heartbeat", {"session_id": session})[0] == 410


def test_quantized(miles, dir):
    """A base in NF4: the log-probs of sampling are still those of training."""
    with Service(miles, dir, "--quantization", "nf4") as s:
        t = made(s.client().create_lora_training_client(base_model=BASE, rank=4, seed=1))
        losses = steps(t, [datum(TOKENS, weights=1)], 4)
        assert losses[-1] < losses[0], losses
        sampler = made(t.save_weights_and_get_sampling_client())
        assert sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()[1:] == logprobs(t, TOKENS)
        s.stop()


def test_bad(s):
    """Bad input: sentences that the client shows, and the next request works."""
    client = s.client()
    fails(lambda: client.create_lora_training_client(base_model="other/model", rank=4), "other/model", BASE)
    fails(lambda: client.create_lora_training_client(base_model=BASE, rank=4096), "rank", "--max-lora-rank")
    fails(lambda: client.create_sampling_client(base_model="other/model"), "other/model", BASE)
    fails(lambda: client.create_sampling_client(model_path="tinker://a/b"), "tinker://a/b")
    t = made(client.create_lora_training_client(base_model=BASE, rank=4))
    good = datum(TOKENS, weights=1)
    short = types.Datum(model_input=types.ModelInput.from_ints(TOKENS), loss_fn_inputs={
        "target_tokens": TOKENS[1:], "weights": [1.0] * 23})
    fails(t.forward_backward([good, short], "cross_entropy"), "datum 1", "target_tokens", "23", "24")
    fails(t.forward_backward([good], "stable_reinforce"), "stable_reinforce", "importance_sampling")
    fails(t.forward_backward([good], "ppo"), "logprobs")
    fails(t.forward_backward([good], "cross_entropy", {"beta": 1.0}), "beta")
    fails(t.forward_backward([datum([1, 99999, 2], weights=1)], "cross_entropy"), "99999")
    fails(t.forward_backward([datum(TOKENS * 30, weights=1)], "cross_entropy"), "512")
    fails(t.forward_backward([datum(TOKENS, weights=float("nan"))], "cross_entropy"), "nan")
    fails(t.optim_step(types.AdamParams(learning_rate=-1.0)), "learning_rate")
    fails(t.save_state("../x"), "../x")
    t.save_state("name").result()
    fails(t.save_state("name"), "exists", "overwrite")
    t.save_state("name", overwrite=True).result()
    base = made(client.create_sampling_client(base_model=BASE))
    prompt = types.ModelInput.from_ints([1])
    fails(base.sample(prompt, 1, types.SamplingParams(max_tokens=0)), "max_tokens")
    fails(base.sample(types.ModelInput.from_ints([99999]), 1, types.SamplingParams(max_tokens=1)), "99999")
    assert len(base.sample(prompt, 1, types.SamplingParams(max_tokens=2, stop=[])).result().sequences[0].tokens) == 2
    assert steps(t, [good], 2)[1] > 0
    assert s.post("no_such_thing", {})[0] == 404


TESTS = (test_supervised, test_equal, test_rl, test_losses, test_targets, test_custom, test_tenants, test_kill,
         test_kills, test_retries, test_bad)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--only")
    parser.add_argument("--kills", type=int, default=5, help="of the server while two tenants train")
    args = parser.parse_args()
    tests = [t for t in (*TESTS, test_tenant_kills) if not args.only or args.only in t.__name__]
    with tempfile.TemporaryDirectory(prefix="miles-tinker-") as dir:
        os.mkdir(dir + "/model")
        make_model(dir + "/model")
        with Service(args.miles, dir, "--max-loaded-loras", "2") as service:
            for t in tests:
                t(service, args.kills) if t == test_tenant_kills else t(service)
            service.stop()
        test_quantized(args.miles, dir)
    print(f"{len(tests) + 1} passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
