#!/usr/bin/env python3
"""LoRA adapters of `miles serve`: against PEFT, mixed in a batch, loaded, evicted, refused.

    tests/e2e/serve_lora.py --miles build/release/miles [--ranks 3]
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from serve_setup import Server, bits, run_on_ranks, write_safetensors, write_tokenizer

LORA = os.path.abspath("tests/golden/adapters/lora")
QWEN = "tests/golden/adapters/models/qwen3"
MULTI = LORA + "/multi_qwen3"
DIRS = {"alpha": MULTI + "/alpha", "beta": MULTI + "/beta", "fused": LORA + "/qwen3_fused"}  # ranks 8, 4, 4
PROMPT = [(7 * i + 3) % 250 for i in range(40)]
SAMPLED = {"max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 5}
SCORED = {"max_new_tokens": 0, "temperature": 0}


def make_qwen(path):
    for name in os.listdir(QWEN):
        shutil.copy(os.path.join(QWEN, name), path)
    write_tokenizer(path)
    return path


def server(miles, *flags, adapters=("alpha", "beta", "fused")):
    paths = ["--lora-paths", *(f"{n}={DIRS[n]}" for n in adapters)] if adapters else ["--enable-lora"]
    return Server(miles, *paths, "--weight-path-prefix", LORA, *flags, make=make_qwen)


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    return {name: (t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + n]).items() if name != "__metadata__"}


def rows(tensor, code):
    shape, data = tensor
    return [list(x) for x in struct.iter_unpack(f"<{shape[1]}{code}", data)]


def scores(reply):
    return [x[0] for x in reply["meta_info"]["input_token_logprobs"][1:]]


def answer(reply):
    return reply["output_ids"], [bits(x[0]) for x in reply["meta_info"]["output_token_logprobs"]]


def ask(s, adapter, prompt=PROMPT, **params):
    return s.generate(input_ids=prompt, lora_path=adapter, return_logprob=True, sampling_params=SAMPLED | params)


def score_with(s, adapter, ids):
    """The log-probabilities of ids[1:] by `miles score`."""
    with tempfile.TemporaryDirectory() as d:
        write_safetensors(d + "/in", {"tokens.0": ([len(ids)], ids)}, "I32")
        lora = ["--lora-adapter-path", DIRS[adapter]] if adapter else []
        subprocess.run([s.miles, "score", "--hf-checkpoint", s.model, "--input", d + "/in", "--output", d + "/out",
                        *lora], check=True)
        data = read_safetensors(d + "/out")["logprobs.0"][1]
    return [data[i:i + 4] for i in range(0, len(data), 4)]


def test_peft(s):
    """A batch of two adapters and the base, as PEFT computed it."""
    golden = read_safetensors(MULTI + "/golden.safetensors")
    with open(MULTI + "/case.json") as f:
        names = json.load(f)["rows"]
    got = s.generate(input_ids=rows(golden["tokens"], "i"), lora_path=[n or None for n in names],
                     return_logprob=True, logprob_start_len=0, sampling_params=SCORED)
    for name, reply, want in zip(names, got, rows(golden["logprobs"], "f"), strict=True):
        off = sum((x - y) ** 2 for x, y in zip(scores(reply), want, strict=True)) ** 0.5
        assert off <= 1e-5 * sum(y * y for y in want) ** 0.5, (name, off)


def test_mixed(s):
    """A request gets the bits that it gets alone, and those of miles score."""
    names = ["alpha", "beta", "fused", None]
    alone = {n: answer(ask(s, n)) for n in names}
    assert len({str(x) for x in alone.values()}) == len(names)
    with ThreadPoolExecutor(16) as pool:
        for i, r in enumerate(pool.map(lambda i: ask(s, names[i % 4]), range(16))):
            assert answer(r) == alone[names[i % 4]], names[i % 4]
    batch = s.generate(input_ids=[PROMPT] * 4, lora_path=names, return_logprob=True, sampling_params=SAMPLED)
    assert [answer(r) for r in batch] == [alone[n] for n in names]
    for n in names:
        ids = PROMPT + alone[n][0]
        assert score_with(s, n, ids)[len(PROMPT) - 1:] == alone[n][1], n


def test_prefix_cache(s):
    """Adapters do not share keys and values."""
    prompt = [9] + PROMPT
    for n in "alpha", "beta", None:
        assert ask(s, n, prompt)["meta_info"]["cached_tokens"] == 0
        assert ask(s, n, prompt)["meta_info"]["cached_tokens"] == 32


def test_names(s):
    """The adapter as a model of OpenAI's API."""
    status, reply = s.ask("/v1/models")
    assert status == 200 and [m["id"] for m in reply["data"]] == ["tiny", "alpha", "beta", "fused"]
    assert [m["parent"] for m in reply["data"]] == [None, "tiny", "tiny", "tiny"]
    assert s.ask("/v1/models/beta")[1]["root"] == DIRS["beta"] and s.ask("/v1/models/gamma")[0] == 404
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 5, "ignore_eos": True}
    for model, adapter in (("tiny:beta", "beta"), ("beta", "beta"), ("tiny", None)):
        status, reply = s.ask("/v1/completions", body | {"model": model})
        assert status == 200 and reply["model"] == model
        assert reply["choices"][0]["text"] == ask(s, adapter)["text"]
    status, reply = s.ask("/v1/completions", body | {"model": "tiny", "lora_path": "alpha"})
    assert reply["choices"][0]["text"] == ask(s, "alpha")["text"]
    assert s.ask("/v1/completions", body | {"model": "tiny:gamma"})[0] == 404
    status, reply = s.ask("/generate", {"input_ids": [1], "lora_path": "gamma"})
    assert status == 400 and '"gamma"' in reply["error"]["message"]


def test_loads(s):
    status, reply = s.ask("/load_lora_adapter", {"lora_name": "more", "lora_path": DIRS["beta"]})
    assert status == 200 and reply["success"] and reply["loaded_adapters"]["more"] == DIRS["beta"]
    assert answer(ask(s, "more")) == answer(ask(s, "beta"))
    status, reply = s.ask("/load_lora_adapter", {"lora_name": "more", "lora_path": DIRS["beta"]})
    assert status == 400 and "loaded already" in reply["error_message"] and not reply["success"]
    status, reply = s.ask("/unload_lora_adapter", {"lora_name": "more"})
    assert status == 200 and "more" not in reply["loaded_adapters"]
    assert s.ask("/unload_lora_adapter", {"lora_name": "more"})[0] == 400
    assert s.ask("/generate", {"input_ids": [1], "lora_path": "more"})[0] == 400


def refused(s, path, *words):
    status, reply = s.ask("/load_lora_adapter", {"lora_name": "bad", "lora_path": path})
    assert status == 400 and all(w in reply["error_message"] for w in words), reply
    assert "bad" not in reply["loaded_adapters"] and s.ask("/generate", {"input_ids": [1], "lora_path": "bad"})[0] == 400


def test_refusals(miles):
    tensor = "base_model.model.model.layers.0."
    with server(miles, "--max-lora-rank", "4", "--lora-target-modules", "o_proj", "down_proj", adapters=()) as s:
        refused(s, LORA + "/llama_r4_qv_rslora", "tensor " + tensor)
        refused(s, DIRS["alpha"], "tensor " + tensor)
        refused(s, LORA + "/qwen3_fused", "tensor " + tensor, "--lora-target-modules")
        refused(s, LORA + "/no_such", "adapter_config.json")
        refused(s, QWEN, "--weight-path-prefix")
        assert s.ask("/load_lora_adapter", {"lora_name": "fresh", "lora_path": LORA + "/qwen3_r4_fresh"})[0] == 200
        ask(s, "fresh")
    with server(miles, "--max-lora-rank", "4", adapters=()) as s:
        refused(s, DIRS["alpha"], "tensor " + tensor, "rank 8", "--max-lora-rank 8")
    with Server(miles, make=make_qwen) as s:
        assert "--enable-lora" in s.ask("/load_lora_adapter", {"lora_name": "x", "lora_path": "y"})[1]["error_message"]
        assert "--enable-lora" in s.ask("/generate", {"input_ids": [1], "lora_path": "x"})[1]["error"]["message"]


def test_eviction(miles, want):
    """One adapter fits into memory, one into a batch: requests for three take turns."""
    with server(miles, "--max-loaded-loras", "1", "--max-loras-per-batch", "1", adapters=("alpha",)) as s:
        for n in "beta", "fused":
            assert s.ask("/load_lora_adapter", {"lora_name": n, "lora_path": DIRS[n]})[0] == 200
        assert {m["id"] for m in s.ask("/v1/models")[1]["data"]} == {"tiny", *DIRS}
        with ThreadPoolExecutor(12) as pool:
            names = ["alpha", "beta", "fused", None] * 3
            for n, r in zip(names, pool.map(lambda n: ask(s, n), names)):
                assert answer(r) == want[n], n
        status, reply = s.ask("/generate", {"input_ids": [[1], [2]], "lora_path": ["alpha", "beta"]})
        assert status == 400 and "--max-loaded-loras" in reply["error"]["message"]
        assert answer(ask(s, "alpha")) == want["alpha"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    miles = args.miles
    if not run_on_ranks(miles, args.ranks):
        return
    tests = (test_peft, test_mixed, test_prefix_cache, test_names, test_loads)
    with server(miles) as s:
        for test in tests:
            test(s)
        want = {n: answer(ask(s, n)) for n in ("alpha", "beta", "fused", None)}
    test_refusals(miles)
    test_eviction(miles, want)
    print(f"{len(tests) + 2} passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
