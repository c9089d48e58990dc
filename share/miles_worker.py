#!/usr/bin/env python3
"""Serves a Python function to miles: one JSON line in, one JSON line out.

A reward, --custom-rm-path ./reward.py:

    def reward(sample):
        return 1.0 if sample["response"].strip() == sample["label"] else 0.0

`sample` has index, prompt, response, label and metadata.  The function returns a number
(numpy's and torch's scalars are numbers, too), or a dict with a number under "reward" or
"score" (see --reward-key), whose other numbers become metrics.  With --group-rm it gets the
list of a group's samples and returns a list.

An environment, --custom-generate-function-path ./env.py:

    def turn(conversation):
        return "No.  Try again." if conversation["turn"] < 3 else None

`conversation` has index, turn, max_turn, prompt, response (all since the prompt), answer
(the model's last turn), calls (of tools, with name and arguments), label and metadata.
The function returns what is said next: a text of the user, a message or a list of messages,
{"text": ...} for text as it is, None when the conversation is over, or {"done": True,
"reward": 1.0}.

Tools, --generate-execute-tool-function-path ./tools.py:

    def execute_tool(name, arguments):
        return "42"

Functions may be async.  What they print goes to standard error.  An exception leaves that
one sample without a reward.

miles embeds this file and sends it over the worker's standard input as the first line.  The
first line of the answer is "ready", or an object whose "error" says why the function cannot
be called.
"""

import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback


def place(error, path):
    """"reward.py, line 3": the deepest frame in the user's file, or else the deepest."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "<string>"]
    frames = [f for f in frames if not f.filename.startswith("<frozen ")]
    file = os.path.abspath(file_of(path or "")[0])
    own = [f for f in frames if os.path.abspath(f.filename) == file]
    frame = (own or frames or [None])[-1]
    return f"{frame.filename}, line {frame.lineno}" if frame else path


def describe(error, path):
    """One line that names the exception, what it says, and where it was raised."""
    said = error.msg if isinstance(error, SyntaxError) else error
    where = place(error, path)
    try:
        what = f"{type(error).__name__}: {said}"
    except Exception:  # an exception whose own __str__ fails
        what = type(error).__name__
    return f"{what} ({where})" if where else what


def plain(value, group=False):
    """The value as JSON has it.  Numbers of numpy, torch, decimal and the like are numbers, and
    so are arrays of one element, unless the value is the list of a group's rewards."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        alone = not group and math.prod(value.shape) == 1
        return plain(value.item() if alone else value.tolist())
    if callable(getattr(value, "item", None)):
        return plain(value.item())
    if hasattr(value, "__float__"):
        return plain(float(value))
    raise TypeError(f"{value!r:.100} is a {type(value).__name__}, which is not a number")


def serve(make, path=None):
    """Makes the function, says so, and answers every line of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a stray print must not look like an answer
    function, text = None, '"ready"'
    try:
        function = make(path) if path else make()
    except (Exception, SystemExit) as error:
        text = json.dumps({"error": describe(error, path)})
    answers.write(text + "\n")
    answers.flush()
    if function is None:
        return
    for line in sys.stdin:
        try:
            text = json.dumps(function(json.loads(line)))
        except (Exception, SystemExit) as error:  # the sample's fault, not the worker's
            text = json.dumps({"error": describe(error, path)})
        answers.write(text + "\n")
        answers.flush()


async def _wait(value):
    return await value


def call(function, *args):
    """The function's value, awaited where it is a coroutine."""
    value = function(*args)
    return asyncio.run(_wait(value)) if inspect.isawaitable(value) else value


def file_of(path):
    """The file and the name in "file.py:name"."""
    file, _, name = path.partition(":")
    return file, name


def load(path, default):
    """The function that "file.py" or "file.py:name" means."""
    path, name = file_of(path)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("custom", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name or default, None)
    if not callable(function):
        raise NameError(f"the file has no function {name or default}")
    return function


def reward(path):
    function = load(path, "reward")

    def answer(question):
        value = call(function, question.get("samples", question))
        return plain(value, group="samples" in question)

    return answer


def turn(path):
    function = load(path, "turn")

    def answer(conversation):
        said = call(function, conversation)
        if isinstance(said, str):
            said = [{"role": "user", "content": said}]
        if isinstance(said, dict) and "role" in said:
            said = [said]
        return {"messages": said} if isinstance(said, list) else plain(said)

    return answer


def tools(path):
    function = load(path, "execute_tool")

    def answer(conversation):
        said = [
            {"role": "tool", "name": c["name"], "content": str(call(function, c["name"], c["arguments"]))}
            for c in conversation["calls"]
        ]
        return {"messages": said} if said else None

    return answer


def ifbench():
    """1.0 when all instructions of metadata are followed, by IFBench's own checkers."""
    try:
        import evaluation_lib
    except ImportError as error:
        missing = f"the IFBench package is not installed: {error}"
        return lambda sample: {"error": missing}

    def follows(sample):
        if sample.get("check"):
            return 1.0
        meta = sample["metadata"] or {}
        ids = [i for i in meta.get("instruction_id_list") or [] if i and str(i).strip()]
        given = meta.get("kwargs") or {}
        given = given if isinstance(given, list) else [given] * len(ids)
        kwargs = [{k: v for k, v in (k_ or {}).items() if v is not None} for k_ in given]
        kwargs = (kwargs + [dict(kwargs[-1] if kwargs else {})] * len(ids))[: len(ids)]
        if not ids or sample["response"] is None:
            return 0.0
        question = evaluation_lib.InputExample(
            key=meta.get("record_id") or 0,
            instruction_id_list=ids,
            prompt=meta.get("prompt_text") or "",
            kwargs=kwargs,
        )
        result = evaluation_lib.test_instruction_following_strict(
            question, {question.prompt: sample["response"]}
        )
        return 1.0 if result.follow_all_instructions else 0.0

    return follows


def main(argv):
    if argv == ["--ifbench"]:
        serve(ifbench)
    elif len(argv) == 2 and argv[0] in ("--turn", "--tools"):
        serve(turn if argv[0] == "--turn" else tools, argv[1])
    elif len(argv) == 1:
        serve(reward, argv[0])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
