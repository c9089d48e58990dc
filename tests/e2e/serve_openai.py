#!/usr/bin/env python3
"""`miles serve` by way of OpenAI's own client: chat, completions, streams, tools, errors.

    tools/with-python.sh openai tests/e2e/serve_openai.py --miles build/release/miles

A tiny random model says nothing in particular: its answers are held against /generate.  Another
one says what it was made to say.
"""
import argparse
import json
import os
import shutil
import struct

import openai
from serve_lora import DIRS, make_qwen
from serve_setup import CHARS, SPECIAL, Server, make_calling

QWEN3 = "tests/golden/data/qwen3"
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


SCHEMA = {"type": "object", "required": ["hue", "size"], "properties": {
    "hue": {"enum": ["red", "blue"]}, "size": {"type": "integer", "minimum": 10, "maximum": 99},
    "note": {"type": "string", "maxLength": 4}}}


def test_formats(c, s):
    """A random model under a grammar: its answers have the form that was asked for.  (The letter c ends an answer.)"""
    for seed in range(4):
        more = {"model": "tiny", "messages": HELLO, "seed": seed, "max_tokens": 400,
                "logit_bias": {str(CHARS.index(x)): -8 for x in " \n\t" if x in CHARS}}
        form = {"type": "json_schema", "json_schema": {"name": "shirt", "schema": SCHEMA, "strict": True}}
        r = c.chat.completions.create(response_format=form, **more)
        got = json.loads(r.choices[0].message.content)
        assert r.choices[0].finish_reason == "stop" and got["hue"] in ("red", "blue") and 10 <= got["size"] <= 99
        parts = c.chat.completions.create(response_format=form, stream=True, **more)
        assert "".join(p.choices[0].delta.content or "" for p in parts) == r.choices[0].message.content
        r = c.chat.completions.create(extra_body={"regex": "(ab|d){2,5}"}, **more)
        assert not r.choices[0].message.content.strip("abd")
    assert json.loads(c.completions.create(model="tiny", prompt="x", max_tokens=200, extra_body={
        "json_schema": json.dumps({"type": "array", "items": {"type": "null"}, "maxItems": 3})}).choices[0].text) is not None


def test_required_tools(c, s):
    tools = [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}, TOOL]
    more = {"model": "tiny", "messages": HELLO, "tools": tools, "max_tokens": 400,
            "logit_bias": {str(CHARS.index(x)): -8 for x in " \n\t" if x in CHARS}}
    for seed in range(3):
        r = c.chat.completions.create(tool_choice={"type": "function", "function": {"name": "paint"}},
                                      parallel_tool_calls=False, seed=seed, **more)
        calls = r.choices[0].message.tool_calls
        assert [x.function.name for x in calls] == ["paint"] and r.choices[0].finish_reason == "tool_calls"
        assert json.loads(calls[0].function.arguments)["hue"] in ("red", "blue")
        r = c.chat.completions.create(tool_choice="required", parallel_tool_calls=False, seed=seed, **more)
        assert r.choices[0].message.tool_calls[0].function.name in ("paint", "get")


def test_best_of(c, s):
    """The answers with the highest log-probability per token, of those that n alone would return."""
    more = {"model": "tiny", "prompt": ["abc", "d"], "logprobs": 0, "extra_body": {"ignore_eos": True}, **SIX}
    every = c.completions.create(n=5, **more)
    best = c.completions.create(n=2, best_of=5, **more)
    for k in range(2):
        ranked = sorted(every.choices[5 * k:5 * k + 5], key=lambda x: -sum(x.logprobs.token_logprobs))
        shown = best.choices[2 * k:2 * k + 2]
        assert [x.text for x in shown] == [x.text for x in ranked[:2]] and shown[0].index == 2 * k
    assert best.usage.completion_tokens == every.usage.completion_tokens == 60
    for wrong in {"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}:
        try:
            c.completions.create(**{**more, **wrong})
            raise AssertionError(wrong)
        except openai.BadRequestError as e:
            assert "best_of" in e.body["message"]


def test_responses(c, s):
    """The same answers as of a chat, in OpenAI's newer form."""
    chat = c.chat.completions.create(model="tiny", messages=[{"role": "system", "content": "be brief"}, *HELLO],
                                     logprobs=True, extra_body={"ignore_eos": True}, **SIX)
    more = {"model": "tiny", "instructions": "be brief", "max_output_tokens": 6,
            "extra_body": {"seed": 3, "ignore_eos": True}}
    r = c.responses.create(input="hello", include=["message.output_text.logprobs"], metadata={"a": "b"}, **more)
    assert r.output_text == chat.choices[0].message.content and r.status == "incomplete"
    assert r.incomplete_details.reason == "max_output_tokens" and r.metadata == {"a": "b"}
    assert (r.usage.input_tokens, r.usage.output_tokens) == (chat.usage.prompt_tokens, 6)
    assert [t.logprob for t in r.output[0].content[0].logprobs] == \
        [t.logprob for t in chat.choices[0].logprobs.content]
    items = c.responses.create(input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}], **more)
    assert items.output_text == r.output_text and items.id != r.id
    # a conversation, by its id and by its items
    by_id = c.responses.create(input="and now", previous_response_id=r.id, **more)
    by_items = c.responses.create(input=[*HELLO, *[x.model_dump() for x in r.output],
                                         {"role": "user", "content": "and now"}], **more)
    assert by_id.output_text == by_items.output_text and by_id.usage.input_tokens == by_items.usage.input_tokens
    assert by_id.previous_response_id == r.id and by_id.usage.input_tokens > r.usage.input_tokens + 6
    assert c.responses.retrieve(r.id).output_text == r.output_text
    c.responses.delete(r.id)
    for wrong in ({"previous_response_id": r.id}, {"tools": [{"type": "web_search"}]}, {"truncation": "auto"},
                  {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}):
        try:
            c.responses.create(**{"input": "x", **more, **wrong})
            raise AssertionError(wrong)
        except openai.BadRequestError as e:
            assert e.body["message"]
    try:
        c.responses.retrieve(r.id)
        raise AssertionError("a deleted response")
    except openai.NotFoundError:
        pass


def test_response_stream(c, s):
    more = {"model": "tiny", "input": "hello", "max_output_tokens": 6, "extra_body": {"seed": 3, "ignore_eos": True}}
    whole = c.responses.create(**more)
    events = list(c.responses.create(stream=True, **more))
    final = events[-1].response
    assert events[-1].type == "response.incomplete" and final.output_text == whole.output_text and final.status == "incomplete"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events][:4] == ["response.created", "response.in_progress", "response.output_item.added",
                                            "response.content_part.added"]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert c.responses.retrieve(final.id).output_text == whole.output_text


def test_response_formats(c, s):
    for seed in range(3):
        more = {"model": "tiny", "input": "hello", "max_output_tokens": 400, "extra_body": {
            "seed": seed, "logit_bias": {str(CHARS.index(x)): -8 for x in " \n\t" if x in CHARS}}}
        r = c.responses.create(text={"format": {"type": "json_schema", "name": "shirt", "schema": SCHEMA, "strict": True}},
                               **more)
        got = json.loads(r.output_text)
        assert r.status == "completed" and got["hue"] in ("red", "blue") and 10 <= got["size"] <= 99


FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {}}, "strict": False}


def test_response_tools(c, s):
    """Two calls in parallel after a word, their results, and an answer to them."""
    r = c.responses.create(model="tiny", input="hello", tools=[FUNCTION], temperature=0)
    calls = [x for x in r.output if x.type == "function_call"]
    assert r.output_text == "wait" and [json.loads(x.arguments) for x in calls] == [{"k": 1}, {"k": 1}]
    results = [{"type": "function_call_output", "call_id": x.call_id, "output": "3"} for x in calls]
    by_id = c.responses.create(model="tiny", input=results, tools=[FUNCTION], temperature=0, previous_response_id=r.id)
    by_items = c.responses.create(model="tiny", tools=[FUNCTION], temperature=0, store=False,
                                  input=[*HELLO, *[x.model_dump() for x in r.output], *results])
    assert by_id.usage.input_tokens == by_items.usage.input_tokens > r.usage.input_tokens
    with c.responses.stream(model="tiny", input="hello", tools=[FUNCTION], temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [x.type for x in final.output] == [x.type for x in r.output]
    assert [e.arguments for e in events if e.type == "response.function_call_arguments.done"] == \
        [x.arguments for x in calls]
    r = c.responses.create(model="tiny", input="hello", tools=[FUNCTION], tool_choice="required",
                           parallel_tool_calls=False, max_output_tokens=400)
    assert [x.type for x in r.output] == ["function_call"]
    try:
        c.responses.retrieve(by_items.id)
        raise AssertionError("store was false")
    except openai.NotFoundError:
        pass


def test_errors(c, s):
    for wrong, kind in (({"model": "other"}, openai.NotFoundError),
                        ({"top_p": 2}, openai.BadRequestError),
                        ({"tool_choice": "required"}, openai.BadRequestError),
                        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
                                              {"type": "array", "uniqueItems": True}}}}, openai.BadRequestError)):
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


def make_embedding(path, mean=False):
    """Qwen3 as Qwen3-Embedding is saved: tensors of the decoder alone, without the prefix of a language model."""
    shutil.copy(QWEN3 + "/config.json", path)
    with open(QWEN3 + "/model.safetensors", "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    text = json.dumps({k.removeprefix("model."): v for k, v in header.items()}).encode()
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    if mean:
        os.mkdir(path + "/1_Pooling")
        with open(path + "/1_Pooling/config.json", "w") as f:
            json.dump({"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}, f)
    return path


def near(a, b):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-5


def test_embeddings(c, s, pooling):
    """As transformers computes them (tools/gen_embedding_golden.py)."""
    with open(QWEN3 + "/embeddings.json") as f:
        golden = json.load(f)
    ids = [g["ids"] for g in golden]
    r = c.embeddings.create(model="tiny", input=ids)  # the client asks for base64
    assert [d.index for d in r.data] == [0, 1, 2, 3] and r.usage.prompt_tokens == sum(map(len, ids))
    assert all(near(d.embedding, g[pooling]) for d, g in zip(r.data, golden))
    floats = c.embeddings.create(model="tiny", input=ids[2], encoding_format="float")
    alone, packed = (struct.pack("48f", *x.embedding) for x in (floats.data[0], r.data[2]))
    assert alone == packed, "a vector depends on its input alone"
    if pooling == "last":
        short = c.embeddings.create(model="tiny", input=ids, dimensions=16)
        assert all(near(d.embedding, g["last16"]) for d, g in zip(short.data, golden))
    for wrong in {"dimensions": 49}, {"input": []}, {"input": "text"}, {"input": [[999]]}, {"encoding_format": "hex"}:
        try:
            c.embeddings.create(**{"model": "tiny", "input": ids, "encoding_format": "float", **wrong})
            raise AssertionError(wrong)
        except openai.BadRequestError as e:
            assert e.body["message"]


def test_no_embeddings(c, s):
    try:
        c.embeddings.create(model="tiny", input="abc")
        raise AssertionError("not an embedding model")
    except openai.BadRequestError as e:
        assert "--is-embedding" in e.body["message"]


def client(s):
    plain = s.ask
    s.ask = lambda path, body=None: plain(path, body, {"Authorization": "Bearer k"})
    return openai.OpenAI(base_url=s.url + "/v1", api_key="k", max_retries=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--miles", required=True)
    miles = parser.parse_args().miles
    tests = (test_models, test_completions, test_completion_stream, test_best_of, test_chat, test_chat_stream,
             test_formats, test_responses, test_response_stream, test_response_formats, test_no_embeddings, test_errors)
    with Server(miles, "--api-key", "k") as s:
        c = client(s)
        for test in tests:
            test(c, s)
    with Server(miles, "--api-key", "k", "--tool-call-parser", "qwen25", make=make_calling) as s:
        c = client(s)
        test_tools(c, s)
        test_required_tools(c, s)
        test_response_tools(c, s)
    with Server(miles, "--api-key", "k", "--lora-paths", "alpha=" + DIRS["alpha"], make=make_qwen) as s:
        test_adapters(client(s), s)
    for pooling in "last", "mean":
        with Server(miles, "--api-key", "k", "--skip-tokenizer-init", "--is-embedding",
                    make=lambda path: make_embedding(path, pooling == "mean")) as s:
            test_embeddings(client(s), s, pooling)
    print(f"{len(tests) + 6} passed, 0 failed, 0 skipped")


main()
