"""Samples from the conversations of an agent with the run's session server."""

import asyncio
import copy
import functools
import inspect
import logging
from concurrent.futures import ThreadPoolExecutor

from miles.rollout.base_types import GenerateFnOutput
from miles.rollout.generate_utils.openai_endpoint_utils import OpenAIEndpointTracer
from miles.utils.misc import load_function
from miles.utils.types import Sample

logger = logging.getLogger(__name__)

# Fields of a chat request that sampling parameters may set, by their names in them.
CHAT_FIELDS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    **{
        name: name
        for name in (
            "max_tokens min_tokens seed temperature top_p top_k min_p stop stop_token_ids frequency_penalty "
            "presence_penalty repetition_penalty ignore_eos skip_special_tokens no_stop_trim logit_bias"
        ).split()
    },
}
_threads = None


def build_chat_request_kwargs(sampling_params):
    """Sampling parameters of /generate as fields of a chat request."""
    out = {}
    for name, value in sampling_params.items():
        if name in CHAT_FIELDS and value is not None:
            out.setdefault(CHAT_FIELDS[name], value)
    return out


async def call_agent(fn, **given):
    """A function that is not async runs on a thread: it may wait for its own requests."""
    global _threads
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):
        return await fn(**given)
    if _threads is None:
        _threads = ThreadPoolExecutor(512, thread_name_prefix="agent")
    out = await asyncio.get_running_loop().run_in_executor(_threads, functools.partial(fn, **given))
    return await out if inspect.isawaitable(out) else out


def aborted(sample, several):
    out = copy.deepcopy(sample)
    out.status = Sample.Status.ABORTED
    return GenerateFnOutput([out] if several else out)


async def generate(input):
    args, sample = input.args, input.sample
    tree = args.use_session_server == "v2"
    agent = load_function(args.custom_agent_function_path)
    assert agent is not None, "agentic_tool_call.generate needs --custom-agent-function-path"
    tracer = await OpenAIEndpointTracer.create(args, sampling_params=input.sampling_params)
    metadata = {**(sample.metadata or {}), "session_server_id": tracer.session_server_id}
    if args.max_seq_len:
        metadata["max_seq_len"] = args.max_seq_len
    said = None
    try:
        said = await call_agent(
            agent,
            base_url=tracer.base_url,
            prompt=sample.prompt,
            request_kwargs=build_chat_request_kwargs(input.sampling_params),
            metadata=metadata,
        )
    except Exception:
        logger.warning("sample %s: the agent failed", sample.index, exc_info=True)
    if said is not None and not isinstance(said, dict):
        raise TypeError(f"the agent returned a {type(said).__name__}; expected a dict of metadata or None")
    made = await tracer.collect_samples(sample, max_seq_len=args.max_seq_len, agent_metadata=said)
    if not made.samples:
        return aborted(sample, tree)
    said = said or {}
    for out in made.samples:
        out.non_generation_time = (said.get("agent_metrics") or {}).get("total_tool_time") or 0.0
    if tree:
        for out in made.samples:
            out.rollout_id = sample.rollout_id if sample.rollout_id is not None else sample.index
        return GenerateFnOutput(made.samples)
    (out,) = made.samples
    out.metadata = {**(out.metadata or {}), **said, **made.session_metadata}
    if "reward" in said and not args.rm_type and not args.custom_rm_path:
        out.reward = said["reward"]
    return GenerateFnOutput(out)
