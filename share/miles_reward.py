#!/usr/bin/env python3
"""Serves a Python reward function to miles: one JSON line in, one JSON line out.

    def reward(sample):
        return 1.0 if sample["response"].strip() == sample["label"] else 0.0

in a file reward.py is all that is needed:

    miles reward --custom-rm-path cmd:./reward.py < samples.jsonl

`sample` is a dict with index, prompt, response, label and metadata.  The function returns
a number, or a dict with a number under "reward" (see --reward-key); it may be async.  What
it prints goes to standard error.  An exception leaves that one sample without a reward.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import sys


def serve(function):
    """Answers every line of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a stray print must not look like an answer
    for line in sys.stdin:
        try:
            value = function(json.loads(line))
            if inspect.isawaitable(value):
                value = asyncio.run(_wait(value))
            text = json.dumps(value, allow_nan=False)
        except Exception as error:  # the sample's fault or the function's, not the worker's
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        answers.write(text + "\n")
        answers.flush()


async def _wait(value):
    return await value


def load(path, name):
    """The function called `name` of the file `path`."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("custom_reward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if function is None:
        sys.exit(f"{path} has no function {name}(sample)")
    return function


def ifbench():
    """1.0 when all instructions of metadata are followed, by IFBench's own checkers."""
    try:
        import evaluation_lib
    except ImportError as error:
        missing = f"the IFBench package is not installed: {error}"
        return lambda sample: {"error": missing}

    def reward(sample):
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

    return reward


def main(argv):
    if argv == ["--ifbench"]:
        serve(ifbench())
    elif argv:
        path, _, name = argv[0].partition(":")
        serve(load(path, name or "reward"))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
