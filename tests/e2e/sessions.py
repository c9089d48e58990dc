#!/usr/bin/env python3
"""Agents over sessions: OpenAI's and Anthropic's own clients as agents of a running `miles train`.

    tools/with-python.sh openai,anthropic tests/e2e/sessions.py --miles build/release/miles [--long]

The model is tiny and random: what it says is trained as it was drawn, whatever the agent does with the text.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

import openai
from serve_setup import CHARS, SPECIAL, Server, make_calling, make_model

TEMPLATE = ("{% if tools %}<|im_start|>system\n{{ tools | length }} tools<|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
            "{% for t in m.tool_calls or [] %}<tool_call>{{ t.function | tojson }}</tool_call>{% endfor %}"
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
ENDS = {"logit_bias": {str(len(CHARS) + SPECIAL.index("<|im_end|>")): 6}}  # answers end soon
HELLO = [{"role": "user", "content": "hello"}]
AGENTS = '''
import json
import os
import anthropic
import openai

CLIENT = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0)
CLAUDE = anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", max_retries=0)

def talk(base_url, prompt, request_kwargs, metadata, turns=3):
    """OpenAI's client; not async."""
    client = CLIENT.with_options(base_url=base_url + "/v1")
    kwargs = {"max_tokens": request_kwargs["max_tokens"], "logit_bias": {"60": 5}}
    messages, said = list(prompt), 0
    for turn in range(turns):
        answer = client.chat.completions.create(model="policy", messages=messages, **kwargs)
        said += len(answer.choices[0].message.content or "")
        if answer.choices[0].finish_reason == "length":
            break
        messages += [answer.choices[0].message.model_dump(exclude_none=True),
                     {"role": "user", "content": f"turn {turn}"}]
    return {"reward": float(said % 3), "turns": turn + 1}

async def claude(base_url, prompt, request_kwargs, metadata):
    """Anthropic's client, with a stream; its second branch rewrites the history."""
    client = CLAUDE.with_options(base_url=base_url)
    n = 0
    for branch in range(2):
        messages = [{"role": "user", "content": prompt[0]["content"] + str(branch)}]
        for turn in range(2):
            async with client.messages.stream(model="policy", max_tokens=request_kwargs["max_tokens"],
                                              system="be brief", messages=messages,
                                              extra_body={"logit_bias": {"60": 5}}) as stream:
                answer = await stream.get_final_message()
            n += answer.usage.output_tokens
            if answer.stop_reason == "max_tokens":
                break
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "more"}]
    return {"reward": float(n % 5)}

def respond(base_url, prompt, request_kwargs, metadata):
    """OpenAI's Responses API: the second turn continues the first by its id, the third by its items."""
    client = CLIENT.with_options(base_url=base_url + "/v1")
    more = {"model": "policy", "max_output_tokens": request_kwargs["max_tokens"], "extra_body": {"logit_bias": {"60": 5}}}
    items = list(prompt)
    first = client.responses.create(input=items, **more)
    if first.status == "incomplete":
        return {"reward": 0.0}
    items += [x.model_dump() for x in first.output] + [{"role": "user", "content": "more"}]
    second = client.responses.create(input="more", previous_response_id=first.id, **more)
    if second.status == "incomplete":
        return {"reward": 1.0}
    items += [x.model_dump() for x in second.output] + [{"role": "user", "content": "still more"}]
    last = list(client.responses.create(input=items, stream=True, **more))[-1].response
    return {"reward": float(len(last.output_text) % 3), "turns": 3}

PICK = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "required": ["way"], "properties": {
    "way": {"enum": ["up", "down"]}}, "additionalProperties": False}}}

def descend(base_url, prompt, request_kwargs, metadata):
    """Five calls of a tool; the reward is the share of those that go down, which the model seldom does at first."""
    client = CLIENT.with_options(base_url=base_url + "/v1")
    messages, depth = list(prompt), 0
    for turn in range(5):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[PICK], tool_choice="required",
                                                parallel_tool_calls=False, max_tokens=90,
                                                logit_bias={"57": -20, "58": -20}).choices[0]  # no spaces
        if answer.finish_reason != "tool_calls":
            break
        call = answer.message.tool_calls[0]
        depth += json.loads(call.function.arguments)["way"] == "down"
        messages += [answer.message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": str(depth)}]
    return {"reward": depth / 5, "turns": turn + 1}

def same(stored, new):
    """As --session-message-matcher role_content_only."""
    return all((stored.get(key) or "") == (new.get(key) or "") for key in ("role", "content"))

def broken(stored, new):
    return "yes"

def fails(base_url, prompt, request_kwargs, metadata):
    talk(base_url, prompt, request_kwargs, metadata, turns=1)
    raise RuntimeError("the agent gives up")

def dies(base_url, prompt, request_kwargs, metadata):
    """The first call ends its worker process."""
    talk(base_url, prompt, request_kwargs, metadata, turns=1)
    try:
        os.close(os.open(metadata["mark"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return talk(base_url, prompt, request_kwargs, metadata, turns=1)
    os._exit(1)
'''


def make_session_model(path, make=make_model):
    make(path)
    with open(path + "/chat_template.jinja", "w") as f:
        f.write(TEMPLATE)
    return path


# A client costs much more than a session: all share one.
CLIENT = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0)


class Session:
    """A session, and a client of it."""

    def __init__(self, server, **body):
        status, reply = server.ask("/sessions", body, {"Authorization": "Bearer k"})
        assert status == 200, reply
        self.server, self.path = server, "/sessions/" + reply["session_id"]
        self.client = CLIENT.with_options(base_url=server.url + self.path + "/v1")

    def chat(self, messages, **more):
        return self.client.chat.completions.create(model="any", messages=messages, **more)

    def samples(self, **body):
        status, reply = self.server.ask(self.path + "/samples", body)
        assert status == 200, reply
        return reply

    def delete(self):
        request = urllib.request.Request(self.server.url + self.path, method="DELETE")
        with urllib.request.urlopen(request) as r:
            return r.status


def check_tokens(session, sample):
    """Drawn tokens are those of the replies, with the log-probs that the server computes for them."""
    records = session.server.ask(session.path)[1]["records"]
    last = records[-1]
    assert sample["tokens"] == last["input_ids"] + last["output_ids"]
    start = len(sample["tokens"]) - sample["response_length"]
    for r in records:
        begin = len(r["input_ids"]) - start
        end = begin + len(r["output_ids"])
        assert sample["tokens"][start + begin:start + end] == r["output_ids"]
        assert sample["loss_mask"][begin:end] == [1] * (end - begin)
        assert sample["rollout_log_probs"][begin:end] == r["output_log_probs"]
    assert sum(sample["loss_mask"]) == sum(len(r["output_ids"]) for r in records)
    scored = session.server.ask("/generate", {"input_ids": sample["tokens"], "return_logprob": True, "logprob_start_len": 0,
                                              "sampling_params": {"max_new_tokens": 0}},
                                {"Authorization": "Bearer k"})[1]["meta_info"]["input_token_logprobs"]
    for i, mask in enumerate(sample["loss_mask"]):
        assert not mask or sample["rollout_log_probs"][i] == scored[start + i][0], i


def test_linear(miles):
    with Server(miles, "--api-key", "k", "--use-session-server", make=make_session_model) as s:
        assert s.ask("/sessions", {})[0] == 401, "a new session needs the key"
        session = Session(s, seed=7, sampling_params={"temperature": 1.0})
        messages, texts = list(HELLO), []
        for turn in range(3):
            # The text of random bytes may be tokenized otherwise than it was drawn.
            answer = session.chat(messages, max_tokens=100, temperature=0.2, **ENDS).choices[0].message
            texts.append(answer.content)
            messages += [answer.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
        got = session.samples()
        (sample,) = got["samples"]
        check_tokens(session, sample)
        kinds = {m["type"] for m in got["session_metadata"]["tito_session_mismatch"]}
        assert kinds <= {"assistant_text", "special_token_count"}, kinds
        again = session.chat(messages[:-2], max_tokens=24, **ENDS)  # the last turn once more
        assert len(session.samples()["samples"]) == 1 and again.choices[0].message.content is not None
        try:
            session.chat([{"role": "user", "content": "another history"}], max_tokens=4)
            raise AssertionError("two answers were discarded")
        except openai.BadRequestError as e:
            assert "at most" in e.message
        assert session.delete() == 204 and s.ask(session.path)[0] == 404
        repeated = Session(s, seed=7, sampling_params={"temperature": 1.0})
        assert repeated.chat(HELLO, max_tokens=100, **ENDS).choices[0].message.content == texts[0], "the seed decides"


def test_tree(miles):
    with Server(miles, "--api-key", "k", "--use-session-server", "v2", "--tool-call-parser", "qwen25",
                make=lambda path: make_session_model(path, make_calling)) as s:
        session = Session(s, seed=1)
        first = session.chat(HELLO, tools=[TOOL]).choices[0].message
        messages = HELLO + [first.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "3"} for c in first.tool_calls]
        list(session.chat(messages, tools=[TOOL], stream=True))  # a stream is recorded, too
        assert [s["n_turn"] for s in session.samples()["samples"]] == [2]
        session.chat(messages, tools=[TOOL])  # a retry of the second turn
        session.chat([{"role": "user", "content": "other"}], tools=[TOOL])  # another history
        got = session.samples()
        assert [x["metadata"]["leaf"]["path_node_ids"] for x in got["samples"]] == [[0, 1], [0, 2], [3]]
        for x in got["samples"]:
            assert {m["type"] for m in x["metadata"]["tito_session_mismatch"]} <= {"assistant_text"}
        cut = session.chat([{"role": "user", "content": "short"}], max_tokens=1)
        try:
            session.chat([{"role": "user", "content": "short"}, cut.choices[0].message.model_dump(exclude_none=True),
                          {"role": "user", "content": "go on"}])
            raise AssertionError("a truncated answer was continued")
        except openai.ConflictError as e:
            assert "cut off" in e.message
        assert session.samples(max_seq_len=3)["empty_reason"] == "all_truncated"


def test_matcher(miles):
    """A matcher that returns no bool is an error of the server, with its function and what it returned."""
    with tempfile.TemporaryDirectory(prefix="miles-sessions-") as out:
        with open(out + "/agents.py", "w") as f:
            f.write(AGENTS.replace("import anthropic", "").replace("CLAUDE =", "#"))
        with Server(miles, "--api-key", "k", "--use-session-server", "--session-message-matcher",
                    out + "/agents.py:broken", make=make_session_model,
                    env={**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}) as s:
            session = Session(s, seed=1)
            answer = session.chat(HELLO, max_tokens=4).choices[0].message
            try:
                session.chat(HELLO + [answer.model_dump(exclude_none=True), *HELLO], max_tokens=4)
                raise AssertionError("the matcher returned a string")
            except openai.InternalServerError as e:
                assert "--session-message-matcher" in e.message and "expected bool" in e.message


def test_hang_up(miles):
    """A client that disconnects loses its request, not the session."""
    with Server(miles, "--api-key", "k", "--use-session-server", make=make_session_model) as s:
        session = Session(s, seed=3)
        first = session.chat(HELLO, max_tokens=4, stream=True)
        next(iter(first))
        first.close()
        answer = session.chat(HELLO, max_tokens=4)
        assert answer.choices[0].message is not None and len(session.samples()["samples"]) == 1


def train(miles, out, agent, *flags):
    args = [miles, "train", "--hf-checkpoint", out + "/model", "--prompt-data", out + "/rows.jsonl", "--input-key",
            "messages", "--metadata-key", "metadata", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
            "--num-rollout", "2", "--rollout-max-response-len", "12", "--rollout-max-context-len", "200",
            "--global-batch-size", "8", "--lr", "1e-3", "--advantage-estimator", "grpo", "--seed", "5",
            "--custom-generate-function-path", "miles.rollout.generate_hub.agentic_tool_call.generate",
            "--custom-agent-function-path", agent, "--overwrite", *flags]
    done = subprocess.run(args, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": out, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]})
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"forward_logp_max_diff (\S+?),", done.stdout)
    assert steps and set(steps) == {"0"}, done.stdout
    return done.stdout + done.stderr


def same_file(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        return x.read() == y.read()


def test_training(miles):
    with tempfile.TemporaryDirectory(prefix="miles-sessions-") as out:
        os.mkdir(out + "/model")
        make_session_model(out + "/model")
        with open(out + "/agents.py", "w") as f:
            f.write(AGENTS)
        with open(out + "/rows.jsonl", "w") as f:
            for word in ("abc", "hello", "xyz", "0123"):
                row = {"messages": [{"role": "user", "content": word}], "metadata": {"mark": out + "/died"}}
                f.write(json.dumps(row) + "\n")
        for name in "a", "b":
            train(miles, out, "agents.talk", "--use-session-server", "--save", f"{out}/{name}")
        assert same_file(out + "/a/iter_0000001/model.safetensors", out + "/b/iter_0000001/model.safetensors")
        said = train(miles, out, "agents.claude", "--use-session-server", "v2", "--save", out + "/c",
                     "--session-message-matcher", "role_content_only")
        assert int(re.search(r"(\d+) samples of 2 prompts", said).group(1)) > 8, said  # several of a conversation
        by_function = train(miles, out, "agents.claude", "--use-session-server", "v2", "--save", out + "/f",
                            "--session-message-matcher", "agents.same")
        assert same_file(out + "/c/iter_0000001/model.safetensors", out + "/f/iter_0000001/model.safetensors"), by_function
        train(miles, out, "agents.respond", "--use-session-server", "--save", out + "/g")
        said = train(miles, out, "agents.fails", "--use-session-server", "--save", out + "/d", "--rm-type", "zero")
        assert "the agent gives up" in said
        train(miles, out, "agents.dies", "--use-session-server", "--save", out + "/e")
        assert os.path.exists(out + "/died")


def test_learning(miles):
    """A task of five tool calls over OpenAI's client: the reward rises."""
    with tempfile.TemporaryDirectory(prefix="miles-sessions-") as out:
        os.mkdir(out + "/model")
        make_session_model(out + "/model")
        with open(out + "/model/config.json") as f:
            config = json.load(f)
        with open(out + "/model/config.json", "w") as f:  # the letter c ends an answer otherwise
            json.dump({**config, "eos_token_id": len(CHARS) + SPECIAL.index("<|im_end|>")}, f)
        with open(out + "/agents.py", "w") as f:
            f.write(AGENTS)
        with open(out + "/rows.jsonl", "w") as f:
            for word in ("a hill", "a tower", "the stairs", "a tree"):
                f.write(json.dumps({"messages": [{"role": "user", "content": word}], "metadata": {}}) + "\n")
        train(miles, out, "agents.descend", "--use-session-server", "--save", out + "/h", "--num-rollout", "10",
              "--lr", "3e-3", "--lr-decay-style", "constant", "--rollout-max-response-len", "600",
              "--rollout-max-context-len", "900", "--generate-tool-call-parser", "qwen25")
        with open(out + "/h/metrics.jsonl") as f:
            rewards = [json.loads(line)["rollout/raw_reward"] for line in f if "rollout/raw_reward" in line]
        assert len(rewards) == 10 and sum(rewards[-3:]) / 3 > rewards[0] + 0.3, rewards


def test_many(miles, n):
    """Sessions at the same time, each with two turns; none is lost, and memory stays flat."""
    with Server(miles, "--api-key", "k", "--use-session-server", "--max-queued-requests", str(n),
                make=make_session_model) as s:
        def one(i):
            session = Session(s, seed=i)
            first = session.chat(HELLO, max_tokens=4).choices[0]
            more = [{"role": "assistant", "content": first.message.content or ""}, {"role": "user", "content": str(i)}]
            session.chat(HELLO + more, max_tokens=4)
            (sample,) = session.samples()["samples"]
            assert session.delete() == 204
            return sum(sample["loss_mask"])

        memory = []
        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(n) as pool:
                drawn = list(pool.map(one, range(n)))
            assert len(drawn) == n and all(x > 0 for x in drawn)
            with open(f"/proc/{s.proc.pid}/statm") as f:
                memory.append(int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        assert memory[2] < 1.05 * memory[1] + (8 << 20), memory  # flat: deleted sessions leave nothing behind


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    parser.add_argument("--long", action="store_true")
    args = parser.parse_args()
    test_linear(args.miles)
    test_tree(args.miles)
    test_matcher(args.miles)
    test_hang_up(args.miles)
    test_training(args.miles)
    test_learning(args.miles)
    test_many(args.miles, 1000 if args.long else 20)
    print("7 passed, 0 failed, 0 skipped")


main()
