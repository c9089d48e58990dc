"""Inputs and outputs of rollout and generate functions."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from miles.rollout.data_source import DataSource
from miles.utils.types import Sample


@dataclass(frozen=True)
class RolloutFnConstructorInput:
    args: Namespace
    data_source: DataSource


@dataclass(frozen=True)
class RolloutFnBaseInput:
    rollout_id: int


@dataclass(frozen=True)
class RolloutFnTrainInput(RolloutFnBaseInput):
    weight_version: "int | None" = None
    evaluation = False


@dataclass(frozen=True)
class RolloutFnEvalInput(RolloutFnBaseInput):
    generate_state: Any = None
    weight_version: "str | None" = None
    hf_dir: "str | None" = None
    evaluation = True


@dataclass
class RolloutFnTrainOutput:
    samples: "list[list[Sample]]"
    metrics: "dict[str, Any] | None" = None


@dataclass
class RolloutFnEvalOutput:
    data: "dict[str, dict[str, Any]]"
    metrics: "dict[str, Any] | None" = None


RolloutFnInput = (RolloutFnTrainInput, RolloutFnEvalInput)
RolloutFnOutput = (RolloutFnTrainOutput, RolloutFnEvalOutput)


@dataclass(frozen=True)
class GenerateFnInput:
    state: Any
    sample: Sample
    sampling_params: "dict[str, Any]"
    evaluation: bool

    @property
    def args(self):
        return self.state.args


@dataclass(frozen=True)
class GenerateFnOutput:
    samples: "Sample | list[Sample]"


def wrap_output(output, evaluation):
    """Plain lists and dicts are outputs, too."""
    if isinstance(output, RolloutFnOutput):
        return output
    return RolloutFnEvalOutput(output) if evaluation else RolloutFnTrainOutput(output)


def call_rollout_fn(fn, *args, evaluation, **kwargs):
    return wrap_output(fn(*args, evaluation=evaluation, **kwargs), evaluation)
