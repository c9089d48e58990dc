"""A worker process of miles: calls the user's Python functions.

miles sends this file and the package `miles` with its first message, so that no file is
needed beside the program.  Descriptor 3 carries calls and answers, 4 this worker's own
requests (miles.host), 5 is shared memory, whose first word is the number of the call that
is running: miles then knows which call made the worker hang or die.

Every call runs in one event loop.  A coroutine function may wait as long as its limit
allows while thousands of others run; a plain function runs alone.
"""

import asyncio
import collections.abc
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import mmap
import os
import socket
import struct
import sys
import time
import traceback

HEAD = struct.Struct("=IIQd")
HELLO, CALL, ALIVE, OVERDUE = range(4)
ASYNC_WINDOW, SYNC_WINDOW = 4096, 8  # calls in flight


class Package(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules that miles has sent.  Others of the same package may be in a checkout."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        package = any(n.startswith(name + ".") for n in self.sources)
        spec = importlib.machinery.ModuleSpec(name, self, origin=f"<{name}>", is_package=package)
        if package:
            part = os.path.join(*name.split("."))
            spec.submodule_search_locations = [d for p in sys.path if os.path.isdir(d := os.path.join(p or ".", part))]
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.sources[module.__name__], f"<{module.__name__}>", "exec"), module.__dict__)


# --- errors ------------------------------------------------------------------------------


def place(error, file):
    """"reward.py, line 3": the deepest frame in the user's file, or else the deepest."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    hidden = ("<", importlib.__path__[0])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(hidden)]
    own = [f for f in frames if file and os.path.abspath(f.filename) == file]
    frame = (own or frames or [None])[-1]
    return f"{frame.filename}, line {frame.lineno}" if frame else file


def describe(error, file=None):
    """One line that names the exception, what it says, and where it was raised."""
    said = error.msg if isinstance(error, SyntaxError) else error
    where = place(error, file)
    try:
        what = " ".join(f"{type(error).__name__}: {said}".split())
    except Exception:  # an exception whose own __str__ fails
        what = type(error).__name__
    if isinstance(error, ModuleNotFoundError) and not where:
        where = "add its directory to PYTHONPATH"
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


async def finish(value):
    return await value if inspect.isawaitable(value) else value


def required(fn):
    """The names of the parameters that must be given by position; None: not known."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]


def is_async(fn):
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))


# --- the functions of the flags -------------------------------------------------------------
#
# Each of these takes the user's object and returns a function from the message of a call to
# its answer, or to a coroutine that gives it.

ROLES = {}


def role(*flags):
    def add(make):
        ROLES.update(dict.fromkeys(flags, make))
        return make

    return add


def sample_of(data):
    from miles.utils.types import Sample

    out = Sample.from_dict(data)
    key = host.args.reward_key
    if key and isinstance(out.reward, (int, float)):
        out.reward = {key: out.reward}
    return out


def samples_of(list_of_data):
    return [sample_of(s) for s in list_of_data]


def own_sample(data):
    """A sample as functions with one parameter get it."""
    return {
        "index": data["index"],
        "prompt": data["prompt"],
        "response": data.get("text", data["response"]),
        "label": data["label"],
        "metadata": data["metadata"] or None,
    }


@role("custom-rm-path")
def reward(fn):
    """async def fn(args, sample, **kwargs), with a list for a group; or fn(sample) with a dict."""
    names = required(fn)
    own = names is not None and len(names) == 1

    def give(call):
        group = "samples" in call
        if own:
            value = fn([own_sample(s) for s in call["samples"]] if group else own_sample(call["sample"]))
        else:
            value = fn(host.args, samples_of(call["samples"]) if group else sample_of(call["sample"]))
        return value

    def answer(call):
        value, group = give(call), "samples" in call
        if not inspect.isawaitable(value):
            return plain(value, group)

        async def wait():
            return plain(await value, group)

        return wait()

    answer.is_async = is_async(fn)
    return answer


@role("ifbench")
def ifbench(_):
    """1.0 when all instructions of metadata are followed, by IFBench's own checkers."""
    import evaluation_lib

    def follows(call):
        sample = call["sample"]
        meta = sample["metadata"] or {}
        ids = [i for i in meta.get("instruction_id_list") or [] if i and str(i).strip()]
        given = meta.get("kwargs") or {}
        given = given if isinstance(given, list) else [given] * len(ids)
        kwargs = [{k: v for k, v in (k_ or {}).items() if v is not None} for k_ in given]
        kwargs = (kwargs + [dict(kwargs[-1] if kwargs else {})] * len(ids))[: len(ids)]
        response = sample.get("text", sample["response"])
        if not ids or response is None:
            return 0.0
        question = evaluation_lib.InputExample(
            key=meta.get("record_id") or 0,
            instruction_id_list=ids,
            prompt=meta.get("prompt_text") or "",
            kwargs=kwargs,
        )
        result = evaluation_lib.test_instruction_following_strict(question, {question.prompt: response})
        return 1.0 if result.follow_all_instructions else 0.0

    return follows


def turn(fn):
    """fn(conversation): what is said next."""

    async def answer(call):
        said = await finish(fn(call["turn"]))
        if isinstance(said, str):
            said = [{"role": "user", "content": said}]
        if isinstance(said, dict) and "role" in said:
            said = [said]
        return {"messages": said} if isinstance(said, list) else plain(said)

    return answer


@role("custom-generate-function-path")
def generate(fn):
    """Miles' generate functions, async or not:

        fn(input: GenerateFnInput) -> GenerateFnOutput, or a class of such objects
        fn(args, sample, sampling_params[, evaluation]) -> Sample

    or fn(conversation), an environment that replies to the model."""
    names = required(fn)
    if not inspect.isclass(fn) and names is not None and len(names) == 1 and names[0] != "input":
        return turn(fn)
    from miles.rollout.base_types import GenerateFnInput
    from miles.rollout.inference_rollout.compatibility import make_generate_function
    from miles.rollout.inference_rollout.inference_rollout_common import GenerateState, grade

    run = make_generate_function(fn)

    async def answer(call):
        sample = fresh_sample(call["sample"])
        if "messages" in call:
            sample.prompt = call["messages"]
        host.call.set(host.Call(call["seed"]))
        state = GenerateState(host.args)
        given = GenerateFnInput(state, sample, call["sampling_params"], call["evaluation"])
        out = (await run(given)).samples
        if isinstance(out, list):  # of which miles grades none
            await grade(host.args, out)
        return {"samples": [record_of(s) for s in (out if isinstance(out, list) else [out])]}

    answer.is_async, answer.about = True, "generate"
    return answer


def fresh_sample(data):
    """A sample that is to be generated: its tokens are those of an earlier part of the answer."""
    out = sample_of(data)
    if not out.response_length:
        out.tokens, out.rollout_log_probs, out.loss_mask = [], None, None
    return out


def number_of(reward):
    """A reward as miles reads it; the entry of --reward-key is the reward of a dict."""
    reward = plain(reward)
    if isinstance(reward, dict) and host.args.reward_key in reward:
        reward["reward"] = reward[host.args.reward_key]
    value = reward.get("reward", reward.get("score")) if isinstance(reward, dict) else reward
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError(f"the reward of a sample is {value!r:.60}; expected a finite number")
    return float(reward) if isinstance(reward, bool) else reward


def versions_of(sample):
    """Of all tokens, or of the tokens that each applies to."""
    tokens = getattr(sample, "weight_version_tokens", None)
    if tokens and sum(tokens) == sample.response_length:
        return {"weight_versions": sample.weight_versions, "weight_version_tokens": tokens}
    versions = [v for v in sample.weight_versions if str(v).isdigit()]
    return {"weight_versions": versions[:1] if len(set(versions)) == 1 else None}


def record_of(sample):
    """What miles takes over from a sample."""
    from miles.utils.types import Sample

    if not isinstance(sample, Sample):
        raise TypeError(f"the function returned a {type(sample).__name__}; expected Sample")
    sample.validate()
    return {
        "index": sample.index,
        "group_index": sample.group_index,
        "rollout_id": sample.rollout_id if sample.rollout_id is not None else sample.index,
        "prompt": sample.prompt if isinstance(sample.prompt, str) else None,
        "tokens": plain(sample.tokens, True),
        "response": sample.response or "",
        "response_length": sample.response_length,
        "loss_mask": None if sample.loss_mask is None else [int(m) for m in plain(sample.loss_mask, True)],
        "rollout_log_probs": None if sample.rollout_log_probs is None else plain(sample.rollout_log_probs, True),
        **versions_of(sample),
        "n_turn": getattr(sample, "n_turn", 1),
        "label": sample.label,
        "metadata": sample.metadata,
        "reward": None if sample.reward is None else number_of(sample.reward),
        "remove_sample": bool(sample.remove_sample),
        "status": sample.status.value,
    }


@role("generate-execute-tool-function-path")
def tools(fn):
    """fn(name, arguments): the result of a tool call."""

    async def answer(call):
        said = []
        for c in call["turn"]["calls"]:
            value = await finish(fn(c["name"], c["arguments"]))
            said.append({"role": "tool", "name": c["name"], "content": str(value)})
        return {"messages": said} if said else None

    return answer


@role("dynamic-sampling-filter-path")
def group_filter(fn):
    """fn(args, samples, **kwargs): DynamicFilterOutput, or a truth value."""
    from miles.rollout.filter_hub.base_types import DynamicFilterOutput

    async def answer(call):
        out = await finish(fn(host.args, samples_of(call["samples"])))
        if out is None:
            raise TypeError("the filter returned None; expected DynamicFilterOutput or a bool")
        if not isinstance(out, DynamicFilterOutput):
            out = DynamicFilterOutput(out)
        return {"keep": bool(out.keep), "reason": str(out.reason or "")}

    return answer


def numbers(value, n, what):
    value = plain(value, group=True)
    if not isinstance(value, list) or len(value) != n:
        raise ValueError(f"the function returned {len(value) if isinstance(value, list) else value!r:.60} {what} for {n} samples")
    for i, v in enumerate(value):
        if isinstance(v, bool) or not isinstance(v, (int, float)):
            raise ValueError(f"entry {i} of the {what} is {v!r:.60}; expected a finite number")
    return value


@role("custom-reward-post-process-path")
def reward_post(fn):
    """fn(args, samples): raw rewards, and the rewards to train on."""

    async def answer(call):
        samples = samples_of(call["samples"])
        out = await finish(fn(host.args, samples))
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError("the function returned no pair (raw rewards, processed rewards)")
        return {"rewards": numbers(out[1], len(samples), "processed rewards")}

    return answer


def groups_of(list_of_data):
    """Consecutive samples of the same group."""
    out, last = [], object()
    for s in samples_of(list_of_data):
        if s.group_index != last:
            out.append([])
        out[-1].append(s)
        last = s.group_index
    return out


@role("rollout-sample-filter-path")
def sample_filter(fn):
    """fn(args, groups): sets remove_sample."""

    async def answer(call):
        groups = groups_of(call["samples"])
        await finish(fn(host.args, groups))
        return {"remove": [bool(s.remove_sample) for g in groups for s in g]}

    return answer


@role("rollout-all-samples-process-path")
def samples_hook(fn):
    """fn(args, groups, data_source): sees all samples, those of dropped groups, too."""

    async def answer(call):
        await finish(fn(host.args, groups_of(call["samples"]), data_source().get_samples))

    return answer


@role("buffer-filter-path")
def buffer_filter(fn):
    """fn(args, rollout_id, buffer, n): the groups of the buffer that continue."""

    async def answer(call):
        buffer = groups_of(call["samples"])
        number = {id(g): i for i, g in enumerate(buffer)}
        chosen = await finish(fn(host.args, None, buffer, call["n"]))
        if any(id(g) not in number for g in chosen):
            raise ValueError("the function returned a group that is not in the buffer")
        return {"selected": [number[id(g)] for g in chosen]}

    return answer


@role("custom-rollout-log-function-path")
def rollout_log(fn):
    """fn(rollout_id, args, samples, extra_metrics, rollout_time)."""
    from miles.utils import tracking_utils

    async def answer(call):
        extra = {}
        await finish(fn(call["rollout"], host.args, samples_of(call["samples"]), extra, 0.0))
        return {"metrics": metrics_of({**extra, **tracking_utils.take()})}

    return answer


@role("custom-eval-rollout-log-function-path")
def eval_log(fn):
    """fn(rollout_id, args, data, extra_metrics)."""
    from miles.utils import tracking_utils
    from miles.utils.types import Sample

    async def answer(call):
        samples, extra = samples_of(call["samples"]), {}
        data = {
            call["set"]: {
                "rewards": [s.get_reward_value(host.args) for s in samples],
                "truncated": [s.status == Sample.Status.TRUNCATED for s in samples],
                "samples": samples,
            }
        }
        await finish(fn(call["rollout"], host.args, data, extra))
        return {"metrics": metrics_of({**extra, **tracking_utils.take()})}

    return answer


def flat(groups):
    """Samples of groups, whose elements may be lists."""
    for x in groups:
        if isinstance(x, (list, tuple)):
            yield from flat(x)
        else:
            yield x


def rollout_caller(fn):
    """Calls a rollout function or object in a thread: a plain function may take long."""
    from miles.rollout.base_types import RolloutFnConstructorInput, wrap_output
    from miles.rollout.inference_rollout.compatibility import make_rollout_function

    made = []

    async def call(given):
        if not made:
            made.append(make_rollout_function(RolloutFnConstructorInput(host.args, data_source()), fn))
        out = await asyncio.to_thread(made[0], given)
        return wrap_output(await finish(out), given.evaluation)

    return call


@role("rollout-function-path")
def rollout_function(fn):
    """fn(args, rollout_id, data_source, evaluation=False), or a class that is called with
    RolloutFnTrainInput: RolloutFnTrainOutput, or groups of samples."""
    from miles.rollout.base_types import RolloutFnTrainInput

    run = rollout_caller(fn)

    async def answer(call):
        out = await run(RolloutFnTrainInput(rollout_id=call["rollout"]))
        if out.samples is None:
            raise TypeError("the function returned no samples")
        return {"samples": [record_of(s) for s in flat(out.samples)], "metrics": metrics_of(out.metrics)}

    answer.is_async = True
    return answer


@role("eval-function-path")
def eval_function(fn):
    """fn(args, rollout_id, data_source, evaluation=True), or a class that is called with
    RolloutFnEvalInput: RolloutFnEvalOutput, or its data."""
    from miles.rollout.base_types import RolloutFnEvalInput

    run = rollout_caller(fn)

    async def answer(call):
        out = await run(RolloutFnEvalInput(rollout_id=call["rollout"]))
        metrics = {}
        for name, data in (out.data or {}).items():
            rewards = numbers(data["rewards"], len(data["rewards"]), "rewards")
            if rewards:
                metrics[f"eval/{name}"] = sum(rewards) / len(rewards)
            if data.get("truncated"):
                metrics[f"eval/{name}-truncated_ratio"] = sum(map(bool, data["truncated"])) / len(data["truncated"])
        return {"metrics": {**metrics, **metrics_of(out.metrics)}}

    answer.is_async = True
    return answer


def metrics_of(metrics):
    out = {}
    for name, value in (metrics or {}).items():
        value = plain(value)
        if isinstance(value, (int, float)):
            out[str(name)] = float(value)
    return out


HOOKS = {
    "custom-megatron-init-path": lambda e: (),
    "custom-megatron-before-log-prob-hook-path": lambda e: (None, e["what"]),
    "custom-megatron-post-save-hook-path": lambda e: (e["rollout"], e["what"], e["what"]),
    "rollout-data-postprocess-path": lambda e: (),
    "custom-update-weight-post-write-path": lambda e: (e["what"], []),
}


def hook(flag):
    def make(fn):
        async def answer(call):
            await finish(fn(host.args, *HOOKS[flag](call["event"])))

        return answer

    return make


for _flag in HOOKS:
    ROLES[_flag] = hook(_flag)


@role("custom-megatron-before-train-step-hook-path")
def step_hook(fn):
    """fn(args, rollout_id, step_id, model, optimizer, scheduler); `model` is a list, as Megatron's
    is.  A call with a sample is one of the loss that the hook has added."""
    from miles import training
    from miles.utils import tracking_utils

    model = None

    def answer(call):
        nonlocal model
        if "sample" in call:
            if model is None or model.loss is None:
                raise RuntimeError("the worker was started again since the hook added a loss")
            return training.run_loss(model.loss, call)
        model = training.Model()
        return change(call["event"])

    async def change(event):
        optimizer = training.Optimizer(event)
        await finish(fn(host.args, event["rollout"], event["step"], [model], optimizer, None))
        metrics = {k.removeprefix("train/"): v for k, v in metrics_of(tracking_utils.take()).items()}
        return training.step_changes(model, optimizer, metrics)

    return answer

TRAINING = {
    "custom-loss-function-path": "make_loss",
    "custom-tis-function-path": "make_correction",
    "custom-pg-loss-reducer-function-path": "make_reducer",
    "advantage-estimator": "make_advantage",
}


def training(make):
    """A function of a train step: miles.training."""

    def role(fn):
        from miles import training

        return getattr(training, make)(training.is_plain(fn))

    return role


for _flag, _make in TRAINING.items():
    ROLES[_flag] = training(_make)

# --- prompts --------------------------------------------------------------------------------

_data_source = None


def data_source():
    """The object of --data-source-path, or the run's own prompts."""
    global _data_source
    if _data_source is None:
        from miles.rollout.data_source import RunDataSource

        _data_source = RunDataSource(host.args)
    return _data_source


def row_of(group):
    """The prompt that the samples of a group share, as a row of prompt data."""
    from miles.utils.types import Sample

    group = list(group) if isinstance(group, (list, tuple)) else [group]
    n = host.args.n_samples_per_prompt
    for s in group:
        if not isinstance(s, Sample):
            raise TypeError(f"get_samples returned a {type(s).__name__} in a group; expected Sample")
    if len(group) != n:
        raise ValueError(f"get_samples returned a group of {len(group)} samples; expected n_samples_per_prompt, {n}")
    first = group[0]
    if any((s.prompt, s.label, s.metadata) != (first.prompt, first.label, first.metadata) for s in group):
        raise ValueError("get_samples returned a group whose samples differ in prompt, label or metadata")
    if not isinstance(first.prompt, (str, list)) or not first.prompt:
        raise ValueError(f"get_samples returned the prompt {first.prompt!r:.60}; expected a text or a list of messages")
    metadata = plain(first.metadata or {})
    row = {"prompt": plain(first.prompt), "label": plain(first.label), "metadata": metadata}
    if metadata.get("tools"):
        row["tools"] = metadata["tools"]
    return row


@role("data-source-path")
def source(cls):
    """A class of Miles' DataSource, made with args: get_samples, add_samples, save, load.  A worker
    that was started again has lost the object's state, and says so."""
    made = None

    async def answer(call):
        nonlocal made
        global _data_source
        if "load" in call:
            host.args.save = host.args.save or call["dir"]
            made = _data_source = cls(host.args)
            await finish(made.load(call["load"]))
            return {}
        if made is None:
            raise RuntimeError("the process of the data source has ended; continue the run from its snapshot with --load")
        if "save" in call:
            await finish(made.save(call["save"]))
            return {}
        groups = await finish(made.get_samples(call["n"]))
        if not isinstance(groups, (list, tuple)):
            raise TypeError(f"get_samples returned {groups!r:.60}; expected a list of groups")
        return {"rows": [row_of(g) for g in groups]}

    return answer


@role("generate-tool-specs-path")
def tool_specs(value):
    """A list of tools, or a function that returns one."""

    async def answer(call):
        tools = plain(await finish(value()) if callable(value) else value)
        if not isinstance(tools, list) or not all(isinstance(t, dict) for t in tools):
            raise TypeError(f"the tools are {tools!r:.60}; expected a list of objects")
        return {"tools": tools}

    return answer


@role("session-message-matcher")
def matcher(fn):
    """fn(stored, new): whether two messages are the same."""

    def answer(call):
        n = 0
        for stored, new in zip(call["stored"], call["new"]):
            same = fn(stored, new)
            if type(same) is not bool:
                raise TypeError(f"the matcher returned a {type(same).__name__}; expected bool")
            if not same:
                break
            n += 1
        return {"n": n}

    return answer


@role("custom-async-data-buffer-path")
def data_buffer(cls):
    """A class of Miles' DataBuffer: put, get, get_metrics.  miles has the queue of groups; the
    object gets each of them once, and what it returns or gives back is decided."""
    from miles.rollout.fully_async_data_buffer import DataBufferConstructorInput, DataBufferInput

    buffer, putting, getting = None, {}, None
    dropped, known = [], {}

    def unused(prompt_group):
        dropped.append(prompt_group[0].group_index)

    async def settle(task):
        """Lets tasks run until nothing is left to do but to wait."""
        for _ in range(16):
            await asyncio.sleep(0)
            if task and task.done():
                break

    def date(groups, staleness):
        """The current version, from which that of a group is as far as its staleness says: a
        version of miles counts optimizer steps, one of Miles publications."""
        current = max((int(v) for g in groups for s in g for v in s.weight_versions), default=0) + max(staleness, default=0)
        for group, stale in zip(groups, staleness):
            entry = known.get(group[0].group_index)
            for s in entry.group if entry else group:
                s.weight_versions = [str(current - stale)]
        return current

    async def put_new(groups):
        for group in groups:
            number = group[0].group_index
            if number in known:
                continue
            known[number] = DataBufferInput(prompt_group=list(fresh_group(group)), group=group)
            putting[number] = asyncio.ensure_future(buffer.put(known[number]))
            await settle(putting[number])
        for number in [k for k, t in putting.items() if t.done()]:
            putting.pop(number).result()  # raises what put raised

    async def answer(call):
        nonlocal buffer, getting
        if buffer is None:
            buffer = cls(DataBufferConstructorInput(args=host.args, unused_handler_fn=unused))
        groups = groups_of(call["samples"])
        current, chosen = date(groups, call["staleness"]), []
        await put_new(groups)
        while len(chosen) < call["n"]:
            if getting is None:
                getting = asyncio.ensure_future(buffer.get(current_version=current))
            await settle(getting)
            if not getting.done():
                break
            entry, getting = getting.result(), None
            number = next((k for k, v in known.items() if v is entry or v.group is entry.group), None)
            if number is None:
                raise ValueError("get returned a group that was not put into the buffer")
            chosen.append(number)
        gone, dropped[:] = list(dropped), []
        for number in chosen + gone:
            known.pop(number, None)
        return {"train": chosen, "drop": gone}

    return answer


def fresh_group(group):
    """The group as it was before it was generated."""
    import copy

    for sample in group:
        fresh = copy.copy(sample)
        fresh.reset_for_retry()
        yield fresh


@role("custom-convert-samples-to-train-data-path")
def convert(fn):
    """fn(args, samples): the columns of the training data, a list for each sample."""

    async def answer(call):
        samples = samples_of(call["samples"])
        out = await finish(fn(host.args, samples))
        if not isinstance(out, dict):
            raise TypeError(f"the function returned a {type(out).__name__}; expected a dict of columns")
        return {"samples": converted(out, samples)}

    return answer


COLUMNS = {
    "tokens": "tokens",
    "response_lengths": "response_length",
    "loss_masks": "loss_mask",
    "rollout_log_probs": "rollout_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "opd_reverse_kl": "opd_reverse_kl",
}


def converted(columns, samples):
    """The training data as samples; "from" is the sample that a row was made of."""
    for name in ("tokens", "response_lengths", "rewards"):
        if name not in columns:
            raise ValueError(f"the training data has no column {name}")
    n = len(columns["tokens"])
    if not n:
        raise ValueError("the training data has no samples")
    known = [*COLUMNS, "rewards", "raw_reward", "truncated", "sample_indices", "rollout_ids"]
    lists = {}
    for name in known:
        if columns.get(name) is None:
            continue
        lists[name] = plain(columns[name], group=True)
        if not isinstance(lists[name], list) or len(lists[name]) != n:
            raise ValueError(f"the column {name} has {len(lists[name])} entries, but tokens has {n}")
    for name in ("rewards", "raw_reward"):
        if name in lists:
            numbers(lists[name], n, name)
    at = {s.index: i for i, s in enumerate(samples)}
    indices = lists.get("sample_indices") or ([s.index for s in samples] if n == len(samples) else None)
    if indices is None:
        raise ValueError(f"the training data has {n} rows for {len(samples)} samples, and no column sample_indices")
    rows = []
    for i in range(n):
        row = {field: lists[name][i] for name, field in COLUMNS.items() if name in lists}
        if "loss_mask" in row:
            row["loss_mask"] = [int(m) for m in row["loss_mask"]]
        row.update(index=indices[i], rollout_id=lists.get("rollout_ids", indices)[i], shaped=lists["rewards"][i])
        row["reward"] = lists.get("raw_reward", lists["rewards"])[i]
        if indices[i] in at:
            row["from"] = at[indices[i]]
        if lists.get("truncated"):
            row["truncated"] = bool(lists["truncated"][i])
        rows.append(row)
    return rows


# --- the loop -----------------------------------------------------------------------------


class Steps(collections.abc.Coroutine):
    """A coroutine that says which call runs while it runs."""

    __slots__ = ("inner", "id")

    def __init__(self, inner, id):
        self.inner, self.id = inner, id

    def send(self, value):
        running[0] = self.id
        try:
            return self.inner.send(value)
        finally:
            running[0] = 0

    def throw(self, *error):
        running[0] = self.id
        try:
            return self.inner.throw(*error)
        finally:
            running[0] = 0

    def close(self):
        self.inner.close()

    def __await__(self):
        return self


class Server:
    """Answers calls."""

    def __init__(self, functions):
        self.functions = functions
        self.calls = socket.socket(fileno=3)
        self.calls.setblocking(False)
        self.data, self.out = bytearray(), bytearray()
        self.tasks, self.flushing = {}, False

    def send(self, kind, id, text):
        self.out += HEAD.pack(len(text), kind, id, 0.0)
        self.out += text
        if not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.flush)

    def flush(self):
        self.flushing = False
        try:
            while self.out:
                del self.out[: self.calls.send(self.out)]
        except BlockingIOError:
            if not self.waiting:
                self.waiting = True
                self.loop.add_writer(self.calls, self.on_writable)
        except OSError:
            os._exit(0)

    def on_writable(self):
        self.waiting = False
        self.loop.remove_writer(self.calls)
        self.flush()

    def answer(self, id, function, value):
        try:
            text = json.dumps(value, separators=(",", ":"), default=str)
        except (TypeError, ValueError) as error:
            text = json.dumps({"error": describe(error, function.file)})
        self.send(CALL, id, text.encode())

    def fail(self, id, function, error):
        file = function.file if function else None  # None: the message of the call is wrong
        self.send(CALL, id, json.dumps({"error": describe(error, file)}).encode())

    def on_late(self, id, function, limit):
        task = self.tasks.pop(id, None)
        if task is not None:
            task.cancel()
            self.send(OVERDUE, id, f"{function.path} did not return within {limit:g} s".encode())

    async def wait(self, id, function, value, limit):
        """Awaits the value of a call, which then has its limit of time."""
        timer = self.loop.call_later(limit, self.on_late, id, function, limit)
        try:
            value = await value
        except asyncio.CancelledError as error:
            if id in self.tasks:
                self.fail(id, function, error)
        except (Exception, SystemExit) as error:
            if id in self.tasks:
                self.fail(id, function, error)
        else:
            if id in self.tasks:
                self.answer(id, function, value)
        finally:
            timer.cancel()
            self.tasks.pop(id, None)

    def run(self, id, limit, text):
        running[0] = id
        function = None
        try:
            call = json.loads(text)
            function = self.functions[call["f"]]
            value = function(call)
            if inspect.isawaitable(value):
                self.tasks[id] = self.loop.create_task(Steps(self.wait(id, function, value, limit), id))
            else:
                self.answer(id, function, value)
        except (Exception, SystemExit) as error:
            self.fail(id, function, error)
        finally:
            running[0] = 0

    def on_readable(self):
        try:
            part = self.calls.recv(1 << 20)
        except BlockingIOError:
            return
        if not part:
            os._exit(0)
        self.data += part
        at, n, began = 0, len(self.data), time.monotonic()
        while n - at >= HEAD.size:
            size, _, id, limit = HEAD.unpack_from(self.data, at)
            if n - at - HEAD.size < size:
                break
            text = bytes(self.data[at + HEAD.size : at + HEAD.size + size])
            at += HEAD.size + size
            self.run(id, limit, text)
            if time.monotonic() - began > 0.001:  # miles must see that calls end
                self.flush()
                began = time.monotonic()
        del self.data[:at]

    def tell_alive(self):
        if not self.out:
            self.send(ALIVE, 0, b"")
        self.loop.call_later(0.5, self.tell_alive)

    async def main(self, window, about):
        self.loop, self.waiting = asyncio.get_running_loop(), False
        self.send(HELLO, 0, f"ready {window} {about}".encode())
        self.loop.add_reader(self.calls, self.on_readable)
        self.loop.call_later(0.5, self.tell_alive)
        await self.loop.create_future()


class Function:
    """A user's function in its role."""

    def __init__(self, entry):
        self.path, flag = entry["path"], entry["flag"]
        module, _ = host.split(self.path, "")
        self.file = os.path.abspath(module) if module.endswith(".py") else None
        fn = None if flag == "ifbench" else host.load(self.path, entry.get("default"))
        if self.file is None and fn is not None:
            found = sys.modules.get(getattr(fn, "__module__", None) or module)
            self.file = getattr(found, "__file__", None)
        if fn is not None and not callable(fn) and flag != "generate-tool-specs-path":
            raise NameError(f"the file has no function {host.split(self.path, entry.get('default'))[1]}")
        self.call = ROLES[flag](fn)
        self.is_async = getattr(self.call, "is_async", None)
        if self.is_async is None:
            self.is_async = fn is not None and is_async(fn)

    def __call__(self, call):
        return self.call(call)


def make_functions(entries):
    out = {}
    for entry in entries:
        try:
            out[entry["flag"]] = Function(entry)
        except (Exception, SystemExit) as error:
            module, _ = host.split(entry["path"], "")
            file = os.path.abspath(module) if module.endswith(".py") else None
            where = "" if file else entry["path"] + ": "
            raise RuntimeError(f"--{entry['flag']}: {where}{describe(error, file)}") from None
    return out


def leave_after_fork():
    """A forked child of a user's function must not answer calls, nor say which one runs."""
    global running
    running = memoryview(bytearray(8)).cast("Q")
    for fd in (3, 4):
        os.close(fd)
        os.open(os.devnull, os.O_RDWR)


# What functions may rely on, where a flag is not given or belongs to another command.
DEFAULTS = {
    "hf_checkpoint": None,
    "reward_key": None,
    "custom_rm_path": None,
    "rm_type": None,
    "group_rm": False,
    "partial_rollout": False,
    "mask_offpolicy_in_partial_rollout": False,
    "ci_test": False,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "num_gpus_per_node": 1,
    "sglang_server_concurrency": 512,
    "sglang_dp_size": 1,
    "sglang_router_policy": None,
    "sglang_speculative_algorithm": None,
    "use_rollout_routing_replay": False,
    "use_rollout_indexer_replay": False,
    "rollout_max_context_len": None,
    "custom_generate_function_path": None,
    "qkv_format": "thd",
    "eval_reward_key": None,
    "rollout_sample_filter_path": None,
    "dynamic_sampling_filter_path": None,
    "over_sampling_batch_size": None,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "use_session_server": None,
    "custom_agent_function_path": None,
    "max_seq_len": None,
    "session_sample_picker_path": None,
    "session_sample_postprocessor_path": None,
}


def make_args(flags):
    import argparse

    class RunArgs(argparse.Namespace):
        def __getattr__(self, name):
            if name in ("sglang_router_ip", "sglang_router_port"):
                at = host.endpoint()
                return at["host"] if name == "sglang_router_ip" else at["port"]
            raise AttributeError(f"the run has no argument {name}")

    args = RunArgs(**DEFAULTS)
    for name, value in flags.items():
        name = name.replace("-", "_")
        if value is not None or name not in DEFAULTS:
            setattr(args, name, value)
    if (getattr(args, "max_weight_staleness", None) or 0) < 0:  # no limit, which Miles calls None
        args.max_weight_staleness = None
    args.rollout_global_dataset = not getattr(args, "disable_rollout_global_dataset", False)
    for name in ("sglang_router_ip", "sglang_router_port"):  # see above
        args.__dict__.pop(name, None)
    return args


def refuse(why):
    text = why.encode()
    with socket.socket(fileno=3) as s:
        s.sendall(HEAD.pack(len(text), HELLO, 0, 0.0) + text)


def main(hello):
    global host, running
    sys.argv = ["miles"]
    sys.meta_path.insert(0, Package(hello["modules"]))
    if "" not in sys.path:
        sys.path.insert(0, "")
    from miles import host

    host._socket = socket.socket(fileno=4)
    host.args = make_args(hello["args"])
    host.shared = mmap.mmap(5, 0)
    running = memoryview(host.shared).cast("Q")
    os.register_at_fork(after_in_child=leave_after_fork)
    sys.stdout.reconfigure(line_buffering=True)
    sys.stderr.reconfigure(line_buffering=True)
    try:
        functions = make_functions(hello["functions"])
    except RuntimeError as error:
        refuse(str(error))
        return
    window = ASYNC_WINDOW if any(f.is_async for f in functions.values()) else SYNC_WINDOW
    about = " ".join(getattr(f.call, "about", "") for f in functions.values())
    asyncio.run(Server(functions).main(window, about))


main(hello)  # noqa: F821: the program that reads the first message has made it
