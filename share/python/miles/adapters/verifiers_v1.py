"""The interface verifiers.v1 (tested with verifiers 0.4.0); see miles.adapters.verifiers.

Every run of an agent in an episode has a session of the run's session server, which records the tokens
that were drawn: the agent's program talks to verifiers' interception server, and that to the session.
A session becomes samples with the reward of that agent's trace."""

import asyncio
import contextlib
import contextvars
import dataclasses

from miles.adapters.verifiers import selection
from miles.rollout.base_types import GenerateFnOutput
from miles.rollout.generate_hub.agentic_tool_call import build_chat_request_kwargs
from miles.rollout.generate_utils.openai_endpoint_utils import OpenAIEndpointTracer
from miles.utils.types import Sample

try:
    from verifiers.v1.clients import EvalClientConfig, ModelContext
    from verifiers.v1.interception import Interception, InterceptionServer
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config
except ImportError as e:
    raise ImportError(f"verifiers has an interface that is not known ({e}): pip install 'verifiers==0.4.*'") from e

# What ModelContext says where the model of the run is meant; a session replaces it.
POLICY = EvalClientConfig(base_url="http://127.0.0.1:1/v1", api_key_var="MILES_SESSION_HAS_NO_KEY")
SAMPLING = ("temperature", "top_p", "max_tokens")
NO_ROOM = "the context length is"  # in the answer of the session server to a prompt that is too long

_calls = contextvars.ContextVar("verifiers_call")
_environment = None
_starting = asyncio.Lock()


class Sessions(Interception):
    """Gives each run of an agent a session, and an interception server that ends with it: a server
    keeps the client of every address that it has seen."""

    def __init__(self, requires_tunnel, state_service_secrets):
        super().__init__()
        self.requires_tunnel, self.secrets = requires_tunnel, state_service_secrets

    async def start(self):
        pass

    @contextlib.asynccontextmanager
    async def acquire(self, session):
        call = _calls.get()
        if session.ctx.client == POLICY:  # not an endpoint of the user's, as of a judge
            tracer = await OpenAIEndpointTracer.create(call.input.args, sampling_params=call.input.sampling_params)
            call.tracers[session.trace.id] = tracer
            client = POLICY.model_copy(update={"base_url": tracer.base_url + "/v1"})
            session.ctx = dataclasses.replace(session.ctx, client=client)
        server = InterceptionServer(requires_tunnel=self.requires_tunnel, state_service_secrets=self.secrets)
        async with server, server.acquire(session) as slot:
            yield slot


@dataclasses.dataclass
class Call:
    """One call of generate: the sessions of its traces."""

    input: object
    tracers: dict = dataclasses.field(default_factory=dict)


class Environment:
    """The environment of this process, with its shared tool servers, until the process ends."""

    def __init__(self):
        self.name, given = selection()
        taskset = {**(given.get("taskset") or {}), "id": self.name}
        self.env = load_environment(resolve_env_config({**given, "taskset": taskset}))
        self.tasks, self.more = [], iter(self.env.taskset)
        self.stack = contextlib.AsyncExitStack()

    async def start(self):
        await self.stack.enter_async_context(self.env.serving())
        tools = self.env._shared_tools.values()
        secrets = tuple(tool.state_secret for tool in tools if tool.state_secret)
        self.env._interception = Sessions(self.env._requires_tunnel(self.env._shared_tools), secrets)

    def task(self, number):
        """A taskset may be infinite: tasks are built up to the one that is asked for."""
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"metadata.task of the row is {number!r}: expected the index of a task of {self.name}")
        while number >= len(self.tasks):
            try:
                self.tasks.append(next(self.more))
            except StopIteration:
                raise ValueError(f"metadata.task of the row is {number}, but {self.name} has {len(self.tasks)} tasks") from None
        return self.tasks[number]


async def environment():
    global _environment
    async with _starting:
        if _environment is None:
            made = Environment()
            await made.start()
            _environment = made
    return _environment


def refuse_failed(episode):
    """An episode that failed has no reward.  One whose conversation has no room left has."""
    if episode.errors:
        raise RuntimeError(f"the episode failed: {episode.errors[-1].type}: {episode.errors[-1].message}")
    for trace in episode.traces:
        if trace.errors and NO_ROOM not in trace.errors[-1].message:
            raise RuntimeError(f"the agent failed: {trace.errors[-1].type}: {trace.errors[-1].message}")


async def samples_of(call, trace):
    """The session's samples, with the reward of the trace."""
    tracer = call.tracers.pop(trace.id, None)
    if tracer is None:
        return []
    args, sample = call.input.args, call.input.sample
    made = await tracer.collect_samples(sample, max_seq_len=args.max_seq_len, agent_metadata={"reward": trace.reward})
    if not trace.agent.trainable:
        return []
    for out in made.samples:
        out.reward = trace.reward
        out.metadata = {**(out.metadata or {}), "agent": trace.agent.name, "verifiers": dict(trace.metrics)}
        out.rollout_id = sample.rollout_id if sample.rollout_id is not None else sample.index
        if trace.errors:
            out.status = Sample.Status.TRUNCATED
    return made.samples


async def generate(input):
    if not input.args.use_session_server:
        raise ValueError("verifiers.v1 needs --use-session-server: add it")
    here = await environment()
    call = Call(input)
    _calls.set(call)
    given = build_chat_request_kwargs(input.sampling_params)
    sampling = SamplingConfig(**{k: v for k, v in given.items() if k in SAMPLING})
    context = ModelContext(model="policy", client=POLICY, sampling=sampling)
    task = here.task((input.sample.metadata or {}).get("task"))
    samples = []
    try:
        episode = await here.env.run_episode(task, context)
        refuse_failed(episode)
        for trace in episode.traces:
            samples += await samples_of(call, trace)
    finally:
        for tracer in call.tracers.values():  # of attempts that verifiers has given up
            await tracer.delete()
    if not samples:
        raise ValueError("the episode ended without a call of the model")
    return GenerateFnOutput(samples if len(samples) > 1 else samples[0])
