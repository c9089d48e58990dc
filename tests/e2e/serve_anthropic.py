#!/usr/bin/env python3
"""`miles serve` by way of Anthropic's own client: messages, streams, tools, errors.

    tools/with-python.sh anthropic tests/e2e/serve_anthropic.py --miles build/release/miles

A tiny random model says nothing in particular: its answers are held against OpenAI's endpoint.  Another
one says what it was made to say.
"""
import argparse

import anthropic
from serve_setup import Server, make_calling

TOOL = {"name": "get", "description": "Gets k.", "input_schema": {"type": "object", "properties": {"k": {"type": "integer"}}}}
HELLO = [{"role": "user", "content": "hello"}]
SEED = {"extra_body": {"seed": 3, "ignore_eos": True}}
KEY = {"Authorization": "Bearer k"}


def chat(s, messages, **more):
    status, reply = s.ask("/v1/chat/completions", {"messages": messages, "seed": 3, "ignore_eos": True, **more}, KEY)
    assert status == 200, reply
    return reply["choices"][0]["message"]["content"], reply["usage"]


def test_message(c, s):
    r = c.messages.create(model="tiny", messages=HELLO, max_tokens=6, **SEED)
    text, usage = chat(s, HELLO, max_tokens=6)
    assert r.type == "message" and r.role == "assistant" and r.id.startswith("msg_")
    assert [b.type for b in r.content] == ["text"] and r.content[0].text == text
    assert r.stop_reason == "max_tokens" and r.stop_sequence is None
    assert r.usage.input_tokens + r.usage.cache_read_input_tokens == usage["prompt_tokens"]
    assert r.usage.output_tokens == 6


def test_system_and_blocks(c, s):
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    r = c.messages.create(model="tiny", system="be brief", messages=blocks, max_tokens=6,
                          metadata={"user_id": "me"}, extra_body={**SEED["extra_body"], "temperature": 0.5, "top_k": 5})
    same = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}]
    assert r.content[0].text == chat(s, same, max_tokens=6, temperature=0.5, top_k=5)[0]
    n = c.messages.count_tokens(model="tiny", system=[{"type": "text", "text": "be brief"}], messages=blocks)
    assert n.input_tokens == r.usage.input_tokens + r.usage.cache_read_input_tokens


def test_stream(c, s):
    whole = c.messages.create(model="tiny", messages=HELLO, max_tokens=6, **SEED)
    with c.messages.stream(model="tiny", messages=HELLO, max_tokens=6, **SEED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 6
    names = [e.type for e in c.messages.create(model="tiny", messages=HELLO, max_tokens=6, stream=True, **SEED)]
    assert names[0] == "message_start" and "content_block_start" in names, names
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"], names


def test_errors(c, s):
    for wrong, kind, status in (({"model": "other"}, "not_found_error", 404),
                                ({"extra_body": {"top_p": 2}}, "invalid_request_error", 400),
                                ({"max_tokens": 0}, "invalid_request_error", 400),
                                ({"messages": [{"role": "system", "content": "x"}]}, "invalid_request_error", 400),
                                ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
                                 "invalid_request_error", 400),
                                ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                                 "invalid_request_error", 400)):
        try:
            c.messages.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 4, **wrong})
            raise AssertionError(wrong)
        except anthropic.APIStatusError as e:
            assert e.status_code == status and e.body["type"] == "error", (wrong, e.body)
            assert e.body["error"]["type"] == kind and e.body["error"]["message"], e.body
    try:
        anthropic.Anthropic(base_url=s.url, api_key="wrong", max_retries=0).messages.create(
            model="tiny", messages=HELLO, max_tokens=4)
        raise AssertionError("a wrong key opened the door")
    except anthropic.AuthenticationError as e:
        assert e.body["error"]["type"] == "authentication_error", e.body


def test_tools(c, s):
    """The model calls a tool twice, after a word."""
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 50, "tools": [TOOL], "extra_body": {"temperature": 0}}
    r = c.messages.create(**ask)
    assert r.stop_reason == "tool_use" and [b.type for b in r.content] == ["text", "tool_use", "tool_use"]
    assert r.content[0].text == "wait" and len({b.id for b in r.content[1:]}) == 2
    assert [(b.name, b.input) for b in r.content[1:]] == [("get", {"k": 1})] * 2
    with c.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert [b.type for b in final.content] == ["text", "tool_use", "tool_use"] and final.stop_reason == "tool_use"
    assert final.content[0].text == "wait" and [b.input for b in final.content[1:]] == [{"k": 1}] * 2
    past = HELLO + [{"role": "assistant", "content": r.content},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": r.content[1].id, "content": "3"},
                        {"type": "tool_result", "tool_use_id": r.content[2].id,
                         "content": [{"type": "text", "text": "4"}], "is_error": True},
                        {"type": "text", "text": "go on"}]}]
    more = c.messages.count_tokens(model="tiny", messages=past, tools=[TOOL]).input_tokens
    same = HELLO + [{"role": "assistant", "content": "wait"}, {"role": "tool", "content": "3"},
                    {"role": "tool", "content": "4"}, {"role": "user", "content": "go on"}]
    tool = {"type": "function", "function": {"name": "get", "parameters": {}}}
    assert more == chat(s, same, max_tokens=1, tools=[tool])[1]["prompt_tokens"]
    stop = c.messages.create(**{**ask, "tools": [], "stop_sequences": ["arguments"]})
    assert stop.stop_reason == "stop_sequence" and stop.stop_sequence == "arguments"
    assert stop.content[0].text == 'wait<tool_call>{"name": "get", "'


def client(s):
    return anthropic.Anthropic(base_url=s.url, api_key="k", max_retries=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    miles = parser.parse_args().miles
    tests = (test_message, test_system_and_blocks, test_stream, test_errors)
    with Server(miles, "--api-key", "k") as s:
        for test in tests:
            test(client(s), s)
    with Server(miles, "--api-key", "k", "--tool-call-parser", "qwen25", make=make_calling) as s:
        test_tools(client(s), s)
    print(f"{len(tests) + 1} passed, 0 failed, 0 skipped")


main()
