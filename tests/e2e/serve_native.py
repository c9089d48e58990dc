#!/usr/bin/env python3
"""`miles serve` as Miles uses it: /generate with token ids, aborts, pauses, new weights.

    tests/e2e/serve_native.py --miles build/release/miles
    tests/e2e/serve_native.py --miles build/release/miles --ranks 2   # the model cut over ranks
"""
import argparse
import http.client
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from serve_setup import GOLDEN, Server, bits, run_on_ranks, score

MILES_PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 40, "stop": None,
                "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True,
                "spaces_between_special_tokens": False}


def logprobs(reply):
    return [x[0] for x in reply["meta_info"]["output_token_logprobs"]]


def ids(reply):
    return [x[1] for x in reply["meta_info"]["output_token_logprobs"]]


def test_bits(s):
    """Log-probs of sampled tokens, of the same tokens read as a prompt, and of miles score."""
    prompt = [5, 7, 11, 13, 17]
    for seed in range(4):
        r = s.generate(input_ids=prompt, sampling_params=dict(MILES_PARAMS, sampling_seed=seed),
                       return_logprob=True, return_routed_experts=False, return_indexer_topk=False)
        answer = ids(r)
        assert answer == r["output_ids"] and r["meta_info"]["completion_tokens"] == len(answer)
        again = s.generate(input_ids=prompt + answer, return_logprob=True,
                           logprob_start_len=len(prompt) - 1,
                           sampling_params={"max_new_tokens": 0, "temperature": 0})
        rescored = again["meta_info"]["input_token_logprobs"][-len(answer):]
        want = score(s.miles, s.model, prompt + answer)[len(prompt) - 1:]
        assert [x[1] for x in rescored] == answer
        assert [bits(x) for x in logprobs(r)] == want
        assert [bits(x[0]) for x in rescored] == want


def test_seeds(s):
    def ask(seed, text="hello"):
        return s.generate(text=text, sampling_params={"max_new_tokens": 30, "sampling_seed": seed,
                                                      "ignore_eos": True}, return_logprob=True)
    alone = [ask(i) for i in range(6)]
    with ThreadPoolExecutor(24) as pool:
        many = list(pool.map(lambda i: ask(i % 6), range(24)))
    for i, r in enumerate(many):
        assert r["output_ids"] == alone[i % 6]["output_ids"]
        assert logprobs(r) == logprobs(alone[i % 6])
    n = s.generate(text="hello", sampling_params={"max_new_tokens": 30, "sampling_seed": 3, "n": 2,
                                                  "ignore_eos": True})
    assert n[0]["output_ids"] == alone[3]["output_ids"] != n[1]["output_ids"]
    free = [s.generate(text="hello", sampling_params={"max_new_tokens": 30}) for _ in range(2)]
    assert free[0]["output_ids"] != free[1]["output_ids"]


def test_masks(s):
    """The ids that a token could have been drawn from, and the log-prob over them."""
    def ask(mask, **more):
        params = dict(MILES_PARAMS, sampling_seed=3, max_new_tokens=12, **more)
        return s.generate(input_ids=[5, 7, 11], sampling_params=params, return_logprob=True,
                          return_sampling_mask=mask)
    whole, top = ask(False), ask(True, top_k=4)
    assert "output_token_sampling_mask" not in whole["meta_info"]
    meta = top["meta_info"]
    for token, own, mask, over in zip(top["output_ids"], logprobs(top), meta["output_token_sampling_mask"],
                                      meta["output_token_sampling_logprobs"], strict=True):
        assert token in mask and len(mask) == 4 and mask == sorted(mask)
        assert own < over <= 0
    nucleus = ask(True, top_p=0.5)["meta_info"]["output_token_sampling_mask"]
    assert all(nucleus) and len({len(x) for x in nucleus}) > 1
    packed = ask("packed", top_k=4)["meta_info"]
    assert packed["output_token_sampling_logprobs"] == meta["output_token_sampling_logprobs"]
    assert isinstance(packed["output_token_sampling_mask"], str)


def read_stream(s, body):
    host = s.url.removeprefix("http://")
    c = http.client.HTTPConnection(host, timeout=60)
    c.request("POST", "/generate", json.dumps(dict(body, stream=True)))
    events = [x for x in c.getresponse().read().decode().split("\n\n") if x]
    assert all(x.startswith("data: ") for x in events) and events[-1] == "data: [DONE]"
    return [json.loads(x[6:]) for x in events[:-1]]


def test_stream(s):
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 20, "sampling_seed": 1, "ignore_eos": True}}
    whole = s.generate(**body)
    events = read_stream(s, body)
    assert events[-1]["output_ids"] == whole["output_ids"] and events[-1]["text"] == whole["text"]
    assert [e["meta_info"]["finish_reason"] is None for e in events] == [True] * (len(events) - 1) + [False]
    for a, b in zip(events, events[1:]):
        assert b["text"].startswith(a["text"]) and b["output_ids"][:len(a["output_ids"])] == a["output_ids"]


def running(s):
    state = s.ask("/server_info")[1]["internal_states"][0]
    return state["num_running_reqs"] + state["num_queue_reqs"]


def until(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


LONG = {"text": "long", "sampling_params": {"max_new_tokens": 10 ** 6, "ignore_eos": True}}


def test_abort(s):
    """Paused requests are in flight for certain when they are aborted."""
    s.ask("/pause_generation", {"mode": "in_place"})
    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(s.generate, **LONG) for _ in range(3)]
        until(lambda: running(s) == 3)
        assert s.ask("/abort_request", {"abort_all": True})[0] == 200
        for r in replies:
            assert r.result()["meta_info"]["finish_reason"]["type"] == "abort"
    s.ask("/continue_generation", {})


def test_gone(s):
    s.ask("/pause_generation", {"mode": "in_place"})
    for stream in False, True:
        c = http.client.HTTPConnection(s.url.removeprefix("http://"))
        c.request("POST", "/generate", json.dumps(dict(LONG, stream=stream)))
        until(lambda: running(s) == 1)
        c.close()
        until(lambda: running(s) == 0)
    s.ask("/continue_generation", {})


def change_weights(s, version):
    """Pause, new weights, go on; the versions of the tokens of an answer that was in flight."""
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(s.generate, **LONG)
        until(lambda: running(s) == 1 or long.done())
        assert s.ask("/pause_generation", {"mode": "retract"})[0] == 200
        assert s.ask("/flush_cache")[0] == 200
        status, r = s.ask("/update_weights_from_disk", {"model_path": s.model, "weight_version": str(version)})
        assert status == 200 and r["success"], r
        assert s.ask("/continue_generation", {})[0] == 200
        return long.result()["meta_info"]["output_token_versions"]


def test_weights(s):
    """One answer has tokens of two versions, unless it ends before the pause: then again."""
    before = s.generate(text="abc", sampling_params={"sampling_seed": 5})
    for version in range(7, 107):
        drawn_with = change_weights(s, version)
        if len(set(drawn_with)) == 2:
            break
    assert len(set(drawn_with)) == 2 and drawn_with[-1] == version, drawn_with
    assert s.ask("/model_info")[1]["weight_version"] == str(version)
    after = s.generate(text="abc", sampling_params={"sampling_seed": 5})
    assert after["output_ids"] == before["output_ids"] and after["meta_info"]["weight_version"] == str(version)
    status, r = s.ask("/update_weights_from_disk", {"model_path": "no/such/dir"})
    assert status >= 400 and not r["success"] and "no/such/dir" in r["message"]


def test_memory(s):
    before = s.generate(text="abc", sampling_params={"sampling_seed": 6})
    assert s.ask("/release_memory_occupation", {})[0] == 200
    assert s.ask("/health")[0] == 200
    assert s.ask("/resume_memory_occupation", {"tags": ["weights"]})[0] == 200
    assert s.ask("/resume_memory_occupation", {"tags": ["kv_cache"]})[0] == 200
    assert s.generate(text="abc", sampling_params={"sampling_seed": 6})["output_ids"] == before["output_ids"]


def test_health(s):
    assert s.ask("/health")[0] == 200 and s.ask("/health_generate")[0] == 200
    assert "sglang:num_running_reqs" in s.ask("/metrics")[1]


def test_drain(miles):
    """SIGTERM: what is in flight ends, the exit status is 0."""
    with Server(miles, "--drain-seconds", "300") as s, ThreadPoolExecutor(1) as pool:
        s.ask("/pause_generation", {"mode": "in_place"})
        reply = pool.submit(s.generate, **LONG)
        until(lambda: running(s) == 1)
        s.ask("/continue_generation", {})
        s.terminate()
        assert reply.result()["meta_info"]["finish_reason"]["type"] == "length"
        assert s.proc.wait(30) == 0


def refuses(s):
    """It accepts no connection, or closes one that it had not read from."""
    try:
        s.ask("/health")
        return False
    except (OSError, http.client.HTTPException):
        return True


def test_cut(miles):
    """Two signals: the end is at once."""
    with Server(miles, "--drain-seconds", "60") as s:
        s.ask("/pause_generation", {"mode": "in_place"})
        c = http.client.HTTPConnection(s.url.removeprefix("http://"))
        c.request("POST", "/generate", json.dumps(LONG))
        until(lambda: running(s) == 1)
        s.terminate()
        until(lambda: refuses(s))  # the first signal was seen
        assert s.proc.poll() is None
        s.terminate()
        assert s.proc.wait(30) == 1
        s.proc.returncode = 0


def test_limits(miles):
    with Server(miles, "--max-running-requests", "1", "--max-queued-requests", "1", "--api-key",
                "secret", "--max-body-bytes", "2KB") as s:
        key = {"Authorization": "Bearer secret"}
        assert s.ask("/generate", LONG)[0] == 401
        assert s.ask("/generate", {"text": "x" * 3000}, key)[0] == 413
        s.ask("/pause_generation", {"mode": "in_place"}, key)
        with ThreadPoolExecutor(8) as pool:
            replies = [pool.submit(s.ask, "/generate", LONG, key) for _ in range(8)]
            until(lambda: sum(r.done() for r in replies) == 7)  # one is in flight
            s.ask("/abort_request", {"abort_all": True}, key)
            codes = [r.result()[0] for r in replies]
        assert set(codes) == {200, 429}, codes
        s.ask("/continue_generation", {}, key)


def test_lost_rank(miles):
    """mpirun ends the job when a rank dies, and a wrong number of ranks is refused."""
    with Server(miles) as s:
        others = [p for p in s.ranks_of_job() if p != s.first_rank()]
        os.kill(others[0], 9)
        assert s.proc.wait(60) != 0
        s.proc.returncode = 0
    ranks, Server.ranks = Server.ranks, ["--tp-size", "7"]
    wrong = subprocess.run([*Server.launcher, miles, "serve", "--model-path", GOLDEN, *Server.ranks],
                           capture_output=True, text=True, timeout=60, check=False)
    Server.ranks = ranks
    assert wrong.returncode != 0 and "--tp-size is 7, and the launcher started" in wrong.stderr, wrong.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    miles = args.miles
    n = 0
    if not run_on_ranks(miles, args.ranks):
        return
    with Server(miles) as s:
        for test in (test_bits, test_seeds, test_masks, test_stream, test_abort, test_gone, test_weights,
                     test_memory, test_health):
            test(s)
            n += 1
    for test in (test_drain, test_cut, test_limits) if args.ranks == 1 else (test_lost_rank,):
        test(miles)
        n += 1
    print(f"{n} passed, 0 failed, 0 skipped")


main()
