"""The interface of verifiers 0.1 (tested with 0.1.14); see miles.adapters.verifiers."""

import asyncio
import importlib
import importlib.util
import inspect
import json
import re
import time

from miles.adapters.episode import Episode, Truncated, messages_of
from miles.adapters.verifiers import selection
from miles.rollout.base_types import GenerateFnOutput

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
NAMES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
_environment = None


def environment():
    global _environment
    if _environment is None:
        import verifiers as vf

        name, given = selection()
        module = importlib.util.find_spec(name.replace("-", "_"))
        if module is not None:
            _environment = importlib.import_module(name.replace("-", "_")).load_environment(**given)
        else:
            _environment = vf.load_environment(name, **given)
    return _environment


def tool_calls(text):
    """The tool calls in an answer, in OpenAI's form, and the text before them."""
    calls = []
    for i, match in enumerate(CALL.finditer(text)):
        try:
            call = json.loads(match.group(1))
        except ValueError:
            continue
        function = {"name": str(call.get("name")), "arguments": json.dumps(call.get("arguments") or {})}
        calls.append({"id": f"call_{i}", "type": "function", "function": function})
    return calls, text[: text.find("<tool_call>")].strip() if calls else text


def plain_tools(messages):
    """Messages as chat templates read them: arguments of tool calls are objects."""
    out = []
    for message in messages:
        message = {k: v for k, v in dict(message).items() if v is not None}
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {"type": "function", "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}}
                for c in (dict(c) for c in message["tool_calls"])
            ]
        message.setdefault("content", "")
        out.append(message)
    return out


def overlong_error():
    """What ends an episode whose prompt is too long; None: an id of the answer, as verifiers 0.1.8 wants it."""
    import verifiers.errors

    return getattr(verifiers.errors, "OverlongPromptError", None)


class Completions:
    """client.chat.completions of an episode."""

    def __init__(self, episode):
        self.episode, self.truncated = episode, False

    async def create(self, *, messages, model="", tools=None, **params):
        from openai.types.chat import ChatCompletion

        sampling = {NAMES.get(k, k): v for k, v in params.items() if v is not None}
        sampling = {k: v for k, v in sampling.items() if k in ("temperature", "top_p", "max_new_tokens", "stop")}
        try:
            text, reason = await self.episode.chat(plain_tools(messages), tools=tools, **sampling)
        except Truncated as e:
            overlong = overlong_error()
            if overlong:
                raise overlong from e
            self.truncated, text, reason = True, "", "length"
        calls, content = tool_calls(text) if tools else ([], text)
        message = {"role": "assistant", "content": content, "tool_calls": calls or None}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else reason}
        return ChatCompletion.model_validate(
            {
                "id": "overlong-prompt" if self.truncated else "miles",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": model,
                "choices": [choice],
            }
        )


def client_of(episode):
    """An OpenAI client whose answers come from the run's engine; later versions have a class around it."""
    from types import SimpleNamespace

    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1/v1")
    client.__dict__["chat"] = SimpleNamespace(completions=Completions(episode))
    try:
        from verifiers.clients import OpenAIChatCompletionsClient
    except ImportError:
        return client
    return OpenAIChatCompletionsClient(client)


async def generate(input):
    sample, env, episode = input.sample, environment(), Episode(input)
    metadata = sample.metadata or {}
    row = {
        "prompt": messages_of(sample.prompt),
        "answer": sample.label if sample.label is not None else "",
        "info": metadata.get("info") or {},
        "example_id": sample.index,
    }
    if metadata.get("task"):  # before 0.1.14 the name of a task, then an object
        row["task"] = metadata["task"]
    state = await env.rollout(row, client_of(episode), "miles", {})
    score = env.rubric.score_rollout
    limit = [asyncio.Semaphore(64)] if len(inspect.signature(score).parameters) > 1 else []
    await score(state, *limit)
    return GenerateFnOutput(episode.finish(reward=float(state["reward"])))
