"""A session of the run's session server: its address for an agent, and its samples."""

import copy
from dataclasses import dataclass, field

from miles import host
from miles.utils.http_utils import request
from miles.utils.misc import load_function
from miles.utils.types import Sample

DROP_RETRIES = "miles.rollout.session.v2.picker_hub.drop_retries"
DEFAULT_POSTPROCESS = "miles.rollout.session.v2.postprocessor_hub.default_postprocess"


@dataclass
class CollectedSamples:
    samples: list = field(default_factory=list)
    session_metadata: dict = field(default_factory=dict)
    empty_reason: "str | None" = None


def _sample_of(input_sample, data):
    """The tokens of a conversation; everything else is that of the sample it was made for."""
    out = copy.deepcopy(input_sample)
    metadata = {**(out.metadata or {}), **data.pop("metadata")}
    info = data.pop("prefix_cache_info")
    status = data.pop("status")
    out.__dict__.update(data)
    out.metadata, out.status = metadata, Sample.Status(status)
    out.prefix_cache_info = Sample.PrefixCacheInfo.from_dict(info)
    return out


def _select(args, samples, metadata):
    """The samples of a tree that are trained on: the picker chooses, the postprocessor changes."""
    pick = load_function(args.session_sample_picker_path or DROP_RETRIES, sync_required=True)
    process = load_function(args.session_sample_postprocessor_path or DEFAULT_POSTPROCESS, sync_required=True)
    picked = list(pick(samples, metadata))
    known, ids = {id(s) for s in samples}, [id(s) for s in picked]
    if len(set(ids)) != len(ids) or not known.issuperset(ids):
        raise ValueError("--session-sample-picker-path: the function must return some of its samples, each once")
    return list(process(picked, metadata))


class OpenAIEndpointTracer:
    """base_url + "/v1/chat/completions" and "/v1/messages" are recorded."""

    def __init__(self, args, at, session_id):
        self.args, self.session_id = args, session_id
        self.router_url = f"http://{at['host']}:{at['port']}"
        self.base_url = f"{self.router_url}/sessions/{session_id}"
        self.session_server_id = f"{at['host']}:{at['port']}"
        self.session_server_instance_id = None

    @classmethod
    async def create(cls, args, sampling_params=None):
        at = host.ask("sessions")
        call = host.call.get()
        body = {"sampling_params": sampling_params and {k: v for k, v in sampling_params.items() if k not in IGNORED}}
        if call is not None:  # a repeated call replaces the sessions of the first
            seed = call.next_seed()
            body |= {"seed": seed, "owner": str(seed)}
        url = f"http://{at['host']}:{at['port']}/sessions"
        made = await request("POST", url, body, {"Authorization": "Bearer " + at["key"]})
        return cls(args, at, made["session_id"])

    async def delete(self):
        """Ends the session without samples."""
        await request("DELETE", self.base_url)

    async def collect_samples(self, input_sample, max_seq_len=None, agent_metadata=None):
        """The samples of the session, which is deleted."""
        try:
            made = await request("POST", self.base_url + "/samples", {"max_seq_len": max_seq_len})
        finally:
            await self.delete()
        metadata = made["session_metadata"]
        samples = [_sample_of(input_sample, s) for s in made["samples"]]
        if self.args.use_session_server == "v2" and samples:
            if agent_metadata is not None:
                metadata["agent"] = agent_metadata
            samples = _select(self.args, samples, metadata)
        return CollectedSamples(samples, metadata, made["empty_reason"])


IGNORED = ("no_stop_trim", "spaces_between_special_tokens", "skip_special_tokens")
