"""Sample, one answer of the model, with the fields of Miles."""

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class AdapterRef:
    """The LoRA adapter of a sample."""

    name: str
    slot: int


@dataclass(frozen=True)
class RewardSpec:
    """A reward of the sample's own."""

    rm_type: "str | None" = None
    custom_rm_path: "str | None" = None


class SampleStatus(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class _Counters:
    """A group of counters that is written as a dict."""

    def to_dict(self):
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data):
        return cls(**{f.name: data.get(f.name, 0) for f in fields(cls)})


@dataclass
class SpecInfo(_Counters):
    """Counters of speculative decoding."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self):
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num else 0.0

    @property
    def spec_accept_length(self):
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct else 0.0

    def add(self, meta_info):
        self.spec_accept_token_num += meta_info.get("spec_accept_token_num", 0)
        self.spec_draft_token_num += meta_info.get("spec_draft_token_num", 0)
        self.spec_verify_ct += meta_info.get("spec_verify_ct", 0)
        self.completion_token_num += meta_info.get("completion_tokens", 0)


@dataclass
class PrefixCacheInfo(_Counters):
    """Counters of the prefix cache."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self):
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens else 0.0

    def add(self, meta_info):
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)


_FINISH = {"length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED, "stop": SampleStatus.COMPLETED}
_PER_TOKEN = ("loss_mask", "rollout_log_probs", "teacher_log_probs", "opd_reverse_kl")
_PER_POSITION = ("rollout_routed_experts", "rollout_indexer_topk")


@dataclass
class Sample:
    """One answer: prompt, tokens, reward, and what the engine reported."""

    group_index: "int | None" = None
    index: "int | None" = None
    rollout_id: "int | None" = None
    prompt: "str | list[dict[str, str]]" = ""
    tokens: "list[int]" = field(default_factory=list)
    multimodal_inputs: "dict[str, Any] | None" = None
    multimodal_train_inputs: "dict[str, Any] | None" = None
    response: str = ""
    response_length: int = 0
    label: "Any | None" = None
    reward: "float | dict[str, Any] | None" = None
    loss_mask: "list[int] | None" = None
    weight_versions: "list[str]" = field(default_factory=list)
    rollout_log_probs: "list[float] | None" = None
    rollout_routed_experts: Any = None
    rollout_indexer_topk: Any = None
    remove_sample: bool = False
    teacher_log_probs: "list[float] | None" = None
    opd_reverse_kl: "list[float] | None" = None
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: "str | None" = None
    train_metadata: "dict | None" = None
    adapter: "AdapterRef | None" = None
    reward_spec: "RewardSpec | None" = None
    routing_key: "str | None" = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    def to_dict(self):
        out = dict(self.__dict__)
        out["status"] = self.status.value
        for name in ("spec_info", "prefix_cache_info"):
            out[name] = out[name].to_dict()
        return out

    @staticmethod
    def from_dict(data):
        """Unknown keys become attributes, and survive to_dict."""
        sample = Sample()
        sample.__dict__.update(data)
        sample.status = SampleStatus(data["status"])
        sample.spec_info = SpecInfo.from_dict(data.get("spec_info") or {})
        sample.prefix_cache_info = PrefixCacheInfo.from_dict(data.get("prefix_cache_info") or {})
        return sample

    def get_reward_value(self, args):
        return self.reward[args.reward_key] if args.reward_key else self.reward

    @property
    def effective_response_length(self):
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    @property
    def oldest_weight_version(self):
        numbers = [int(v) for v in self.weight_versions if str(v).isdigit()]
        return min(numbers, default=None)

    def validate(self):
        n = self.response_length
        assert n >= 0, f"response_length is {n}; expected 0 or more"
        assert len(self.tokens) >= n, f"there are {len(self.tokens)} tokens, but response_length is {n}"
        for name in _PER_TOKEN:
            value = getattr(self, name)
            assert value is None or len(value) == n, f"{name} has {len(value)} entries, but response_length is {n}"
        for name in _PER_POSITION:
            value = getattr(self, name)
            assert value is None or len(value) == len(self.tokens) - 1, (
                f"{name} has {len(value)} rows; expected one for each token but the last: {len(self.tokens) - 1}"
            )

    def strip_last_output_tokens(self, n, tokenizer):
        """Drops the last n tokens of the answer, and their entries in all arrays."""
        if n <= 0:
            return
        assert n <= self.response_length, f"cannot drop {n} tokens of an answer of {self.response_length}"
        self.tokens = self.tokens[:-n]
        self.response_length -= n
        for name in _PER_TOKEN + _PER_POSITION:
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[:-n])
        if "opd_student_top_logprobs" in (self.metadata or {}):
            self.metadata["opd_student_top_logprobs"] = self.metadata["opd_student_top_logprobs"][:-n]
        kept = self.response_length
        self.response = tokenizer.decode(self.tokens[-kept:]) if kept else ""

    def reset_for_retry(self):
        """Forgets the answer, so that the prompt can be generated again."""
        fresh = Sample()
        keep = {"group_index", "index", "rollout_id", "prompt", "label", "multimodal_inputs", "metadata"}
        keep |= {"generate_function_path", "routing_key", "adapter", "reward_spec", "teacher_log_probs", "opd_reverse_kl"}
        for f in fields(Sample):
            if f.name not in keep:
                setattr(self, f.name, getattr(fresh, f.name))
        self.status = SampleStatus.ABORTED

    def update_from_meta_info(self, args, meta_info):
        """Adds what the engine reports about one request."""
        if getattr(args, "sglang_speculative_algorithm", None):
            self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        self.status = _FINISH.get(meta_info["finish_reason"]["type"], self.status)


Sample.Status = SampleStatus
Sample.SpecInfo = SpecInfo
Sample.PrefixCacheInfo = PrefixCacheInfo

RolloutBatch = dict


@dataclass
class MultimodalType:
    name: str
    placeholder: str


class MultimodalTypes:
    IMAGE = MultimodalType("image", "<image>")
    VIDEO = MultimodalType("video", "<video>")
    AUDIO = MultimodalType("audio", "<audio>")

    @classmethod
    def all(cls):
        return [cls.IMAGE, cls.VIDEO, cls.AUDIO]

    @classmethod
    def get(cls, name):
        return {m.name: m for m in cls.all()}.get(name)
