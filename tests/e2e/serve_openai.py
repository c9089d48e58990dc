#!/usr/bin/env python3
"""`miles serve` by way of OpenAI's own client: chat, completions, streams, tools, errors.

    tools/with-python.sh openai tests/e2e/serve_openai.py --miles build/release/miles

A tiny random model says nothing in particular: its answers are held against /generate.  Another
one says what it was made to say.
"""
import argparse
import json

import openai
from serve_lora import DIRS, make_qwen
from serve_setup import CHARS, SPECIAL, Server, make_calling

EOS = len(CHARS) + SPECIAL.index("<|im_end|>")
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
HELLO = [{"role": "user", "content": "hello"}]
SIX = {"max_tokens": 6, "seed": 3}


def test_models(c, s):
    assert [m.id for m in c.models.list()] == ["tiny"]
    assert c.models.retrieve("tiny").id == "tiny"


def test_completions(c, s):
    r = c.completions.create(model="tiny", prompt="abc", logprobs=2, extra_body={"ignore_eos": True}, **SIX)
    native = s.generate(text="abc", return_logprob=True, return_text_in_logprobs=True,
                        sampling_params={"max_new_tokens": 6, "sampling_seed": 3, "ignore_eos": True})
    assert r.choices[0].text == native["text"] and r.choices[0].finish_reason == "length"
    assert r.usage.prompt_tokens == 3 and r.usage.completion_tokens == 6 and r.usage.total_tokens == 9
    assert r.choices[0].logprobs.token_logprobs == [x[0] for x in native["meta_info"]["output_token_logprobs"]]
    assert r.choices[0].logprobs.tokens == [x[2] for x in native["meta_info"]["output_token_logprobs"]]
    assert all(len(t) <= 2 for t in r.choices[0].logprobs.top_logprobs)
    many = c.completions.create(model="tiny", prompt=["abc", "d"], n=2, extra_body={"ignore_eos": True}, **SIX)
    assert [x.index for x in many.choices] == [0, 1, 2, 3] and many.choices[0].text == r.choices[0].text
    echo = c.completions.create(model="tiny", prompt="abc", echo=True, extra_body={"ignore_eos": True}, **SIX)
    assert echo.choices[0].text == "abc" + r.choices[0].text


def test_completion_stream(c, s):
    whole = c.completions.create(model="tiny", prompt="abc", **SIX)
    parts = list(c.completions.create(model="tiny", prompt="abc", stream=True,
                                      stream_options={"include_usage": True}, **SIX))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [p.choices[0].finish_reason for p in parts if p.choices][-1] == whole.choices[0].finish_reason


def test_chat(c, s):
    r = c.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=3,
                                  extra_body={"return_token_ids": True, "ignore_eos": True}, **SIX)
    choice = r.choices[0]
    assert choice.message.role == "assistant" and len(choice.logprobs.content) == 6
    assert len(choice.logprobs.content[0].top_logprobs) == 3
    native = s.generate(input_ids=choice.prompt_token_ids, return_logprob=True,
                        sampling_params={"max_new_tokens": 6, "sampling_seed": 3, "ignore_eos": True})
    assert native["output_ids"] == choice.response_token_ids and native["text"] == choice.message.content
    assert [t.logprob for t in choice.logprobs.content] == \
        [x[0] for x in native["meta_info"]["output_token_logprobs"]]
    stop = c.chat.completions.create(model="tiny", messages=HELLO, logit_bias={str(EOS): 100}, max_tokens=6)
    assert stop.choices[0].finish_reason == "stop" and stop.choices[0].message.content == ""
    assert stop.usage.completion_tokens == 1


def test_chat_stream(c, s):
    whole = c.chat.completions.create(model="tiny", messages=HELLO, n=2, **SIX)
    text = ["", ""]
    finish = [None, None]
    for part in c.chat.completions.create(model="tiny", messages=HELLO, n=2, stream=True, **SIX):
        for x in part.choices:
            text[x.index] += x.delta.content or ""
            finish[x.index] = x.finish_reason or finish[x.index]
    assert text == [x.message.content for x in whole.choices]
    assert finish == [x.finish_reason for x in whole.choices]


def test_tools(c, s):
    """The model calls a tool twice, between words."""
    r = c.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL], temperature=0)
    assert r.choices[0].finish_reason == "tool_calls" and r.choices[0].message.content == "wait"
    calls = r.choices[0].message.tool_calls
    assert [x.function.name for x in calls] == ["get", "get"] and len({x.id for x in calls}) == 2
    assert [json.loads(x.function.arguments) for x in calls] == [{"k": 1}, {"k": 1}]
    text, got = "", {}
    for part in c.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL], temperature=0, stream=True):
        delta = part.choices[0].delta
        text += delta.content or ""
        for x in delta.tool_calls or []:
            got[x.index] = x.function
        finish = part.choices[0].finish_reason
    assert text == "wait" and finish == "tool_calls" and [got[i].name for i in (0, 1)] == ["get", "get"]
    past = HELLO + [{"role": "assistant", "content": None, "tool_calls": [x.model_dump() for x in calls]},
                    {"role": "tool", "tool_call_id": calls[0].id, "content": "3"}]
    assert c.chat.completions.create(model="tiny", messages=past, tools=[TOOL]).usage.prompt_tokens > r.usage.prompt_tokens
    plain = c.chat.completions.create(model="tiny", messages=HELLO, temperature=0, stop="arguments")
    assert plain.choices[0].message.content == 'wait<tool_call>{"name": "get", "'
    assert plain.choices[0].finish_reason == "stop"


def test_errors(c, s):
    for wrong, kind in (({"model": "other"}, openai.NotFoundError),
                        ({"top_p": 2}, openai.BadRequestError),
                        ({"tools": [TOOL], "tool_choice": "required"}, openai.BadRequestError)):
        try:
            c.chat.completions.create(**dict({"model": "tiny", "messages": HELLO}, **wrong))
            raise AssertionError(wrong)
        except kind as e:
            assert e.body["message"] and e.body["type"] == "invalid_request_error"
    try:
        openai.OpenAI(base_url=s.url + "/v1", api_key="wrong").models.list()
        raise AssertionError("a wrong key opened the door")
    except openai.AuthenticationError as e:
        assert "Bearer" in json.dumps(e.body)


def test_adapters(c, s):
    """An adapter is a model, by its own name or after the base's."""
    assert [m.id for m in c.models.list()] == ["tiny", "alpha"] and c.models.retrieve("alpha").id == "alpha"
    text = {}
    for model in "tiny", "alpha", "tiny:alpha":
        r = c.completions.create(model=model, prompt="abc", extra_body={"ignore_eos": True}, **SIX)
        text[model] = r.choices[0].text
        assert r.model == model
    native = s.generate(text="abc", lora_path="alpha",
                        sampling_params={"max_new_tokens": 6, "sampling_seed": 3, "ignore_eos": True})
    assert text["alpha"] == text["tiny:alpha"] == native["text"] != text["tiny"]
    try:
        c.completions.create(model="tiny:beta", prompt="abc")
        raise AssertionError("an unknown adapter")
    except openai.NotFoundError as e:
        assert "beta" in e.body["message"]


def client(s):
    plain = s.ask
    s.ask = lambda path, body=None: plain(path, body, {"Authorization": "Bearer k"})
    return openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    miles = parser.parse_args().miles
    tests = (test_models, test_completions, test_completion_stream, test_chat, test_chat_stream, test_errors)
    with Server(miles, "--api-key", "k") as s:
        c = client(s)
        for test in tests:
            test(c, s)
    with Server(miles, "--api-key", "k", "--tool-call-parser", "qwen25", make=make_calling) as s:
        test_tools(client(s), s)
    with Server(miles, "--api-key", "k", "--lora-paths", "alpha=" + DIRS["alpha"], make=make_qwen) as s:
        test_adapters(client(s), s)
    print(f"{len(tests) + 2} passed, 0 failed, 0 skipped")


main()
