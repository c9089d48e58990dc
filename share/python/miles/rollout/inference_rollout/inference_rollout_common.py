"""Generation and grading of groups, for rollout functions."""

import asyncio
import copy

from miles import host
from miles.rollout.base_types import GenerateFnInput, RolloutFnEvalOutput
from miles.rollout.generate_hub.single_turn import generate
from miles.rollout.inference_rollout.compatibility import load_generate_function, make_generate_function
from miles.rollout.rm_hub import async_rm, batched_async_rm
from miles.utils.misc import SingletonMeta
from miles.utils.processing_utils import load_processor, load_tokenizer
from miles.utils.types import Sample


def compute_sampling_params(args, *, temperature, top_p, top_k, max_new_tokens):
    return {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_new_tokens": max_new_tokens,
        "stop": args.rollout_stop,
        "stop_token_ids": [int(t) for t in args.rollout_stop_token_ids] if args.rollout_stop_token_ids else None,
        "skip_special_tokens": args.rollout_skip_special_tokens,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


class GenerateState(metaclass=SingletonMeta):
    """What the generate functions of a run share."""

    def __init__(self, args):
        self.args = args
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        self.processor = load_processor(args.hf_checkpoint)
        slots = args.sglang_server_concurrency * args.rollout_num_gpus // args.rollout_num_gpus_per_engine
        self.semaphore = self.generate_fn_semaphore = asyncio.Semaphore(max(1, slots))
        self.sampling_params = compute_sampling_params(
            args,
            temperature=args.rollout_temperature,
            top_p=args.rollout_top_p,
            top_k=args.rollout_top_k,
            max_new_tokens=args.rollout_max_response_len,
        )
        self._generate = None
        self.reset()

    @property
    def generate_function(self):
        if self._generate is None:
            path = self.args.custom_generate_function_path
            self._generate = load_generate_function(path) or make_generate_function(generate)
        return self._generate

    def reset(self):
        self.remaining_batch_size = 0
        self.pendings = set()
        self.aborted = False


async def grade(args, out):
    """Rewards of samples that have none."""
    if args.group_rm:
        return
    samples = out if isinstance(out, list) else [out]
    if any(s.status == Sample.Status.ABORTED for s in samples):
        return
    if isinstance(out, list):
        await batched_async_rm(args, [s for s in out if s.reward is None], inplace_set_reward_field=True)
    elif out.reward is None:
        out.reward = await async_rm(args, out)


async def generate_and_rm(state, sample, sampling_params, evaluation=False):
    """Generates and grades a sample; a generate function may make several of it."""
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        return sample
    host.call.set(host.Call(state.args.rollout_seed * 0x9E3779B9 + (2 * sample.index + evaluation) * 0x85EBCA6B))
    async with state.generate_fn_semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        own = load_generate_function(sample.generate_function_path)
        given = GenerateFnInput(state, sample, copy.deepcopy(sampling_params), evaluation)
        out = (await (own or state.generate_function)(given)).samples
    await grade(state.args, out)
    return out


async def generate_and_rm_group(state, group, sampling_params, evaluation=False, sample_done_callback=None):
    """Generates and grades the samples of a group at the same time."""
    if state.aborted:
        return group

    async def one(sample):
        try:
            return await generate_and_rm(state, sample, dict(sampling_params), evaluation)
        finally:
            if sample_done_callback is not None:
                sample_done_callback()

    tasks = [asyncio.ensure_future(one(s)) for s in group]
    try:
        out = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    if state.args.group_rm and not state.aborted:
        flat = [s for x in out for s in (x if isinstance(x, list) else [x])]
        await batched_async_rm(state.args, flat, inplace_set_reward_field=True)
    return out


class InferenceRolloutFn:
    """Miles' own rollout function, for classes that extend it."""

    def __init__(self, input):
        self.data_source = input.data_source
        self.state = GenerateState(input.args)

    async def __call__(self, input):
        return await (self._call_eval(input) if input.evaluation else self._call_train(input))

    async def _call_train(self, input):
        from miles.rollout.sglang_rollout import generate_groups

        output, rest = await generate_groups(self.state, self.data_source.get_samples)
        self.data_source.add_samples(rest)
        return output

    async def _call_eval(self, input):
        from miles.rollout.sglang_rollout import run_eval_datasets

        return RolloutFnEvalOutput(await run_eval_datasets(self.state))
