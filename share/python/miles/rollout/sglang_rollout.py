"""Rollout and generate functions with separate arguments."""

import asyncio

from miles import host
from miles.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from miles.rollout.filter_hub.base_types import MetricGatherer, call_dynamic_filter
from miles.rollout.generate_hub import single_turn
from miles.rollout.inference_rollout import inference_rollout_common as common
from miles.rollout.inference_rollout.inference_rollout_common import GenerateState
from miles.utils.async_utils import run
from miles.utils.http_utils import post
from miles.utils.misc import load_function
from miles.utils.types import Sample

__all__ = ["GenerateState", "generate", "generate_and_rm", "generate_and_rm_group", "generate_rollout", "get_model_url"]


def get_model_url(args, model_name, endpoint="/generate"):
    """The address of a model's engine; the run has one."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{endpoint}"


async def generate(args, sample, sampling_params):
    """One request to the engine."""
    from miles.rollout.base_types import GenerateFnInput

    given = GenerateFnInput(GenerateState(args), sample, sampling_params, False)
    return (await single_turn.generate(given)).samples


async def generate_and_rm(args, sample, sampling_params, evaluation=False):
    return await common.generate_and_rm(GenerateState(args), sample, sampling_params, evaluation)


async def generate_and_rm_group(args, group, sampling_params, evaluation=False):
    return await common.generate_and_rm_group(GenerateState(args), group, sampling_params, evaluation)


async def abort(args, rollout_id=None):
    """Ends the requests in flight; returns no unfinished groups."""
    GenerateState(args).aborted = True
    await post(get_model_url(args, "default", "/abort_request"), {"abort_all": True})
    return []


def _first(group):
    first = group[0]
    return (first[0] if isinstance(first, list) else first).index


async def generate_groups(state, get_samples):
    """Generates groups until enough are kept; returns them and those that are left over."""
    args, want = state.args, state.args.rollout_batch_size
    keep = load_function(args.dynamic_sampling_filter_path)
    metrics, kept, tasks = MetricGatherer(), [], set()
    state.reset()
    while len(kept) < want:
        while len(tasks) < want - len(kept):
            for group in get_samples(args.over_sampling_batch_size or want):
                task = common.generate_and_rm_group(state, group, state.sampling_params)
                tasks.add(asyncio.ensure_future(task))
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            group = task.result()
            out = call_dynamic_filter(keep, args, group)
            if not out.keep:
                metrics.on_dynamic_filter_drop(out.reason)
            elif len(kept) < want:
                kept.append(group)
    if tasks:
        await abort(args)
        await asyncio.gather(*tasks, return_exceptions=True)
    state.reset()
    kept.sort(key=_first)
    filter_samples = load_function(args.rollout_sample_filter_path)
    if filter_samples is not None:
        filter_samples(args, kept)
    return RolloutFnTrainOutput(kept, metrics.collect()), []


async def run_eval_datasets(state, *_):
    """The answers to all evaluation sets, which the run generates and grades."""
    results = {}
    for data in await asyncio.to_thread(host.ask, "evaluate"):
        samples = [Sample.from_dict(s) for s in data["samples"]]
        results[data["name"]] = {
            "rewards": [s.reward if s.reward is not None else 0.0 for s in samples],
            "truncated": [s.status == Sample.Status.TRUNCATED for s in samples],
            "samples": samples,
        }
    return results


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    """Miles' own rollout function, for functions that call it."""
    state = GenerateState(args)
    if evaluation:
        return RolloutFnEvalOutput(run(run_eval_datasets(state)))
    output, rest = run(generate_groups(state, data_source.get_samples))
    data_source.add_samples(rest)
    return output
