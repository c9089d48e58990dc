"""Functions with the signatures of earlier versions of Miles."""

import inspect

from miles.rollout.base_types import GenerateFnOutput, wrap_output
from miles.utils.async_utils import run
from miles.utils.misc import load_function


def _names(fn):
    return list(inspect.signature(fn).parameters)


def make_generate_function(fn):
    """A coroutine function from GenerateFnInput to GenerateFnOutput."""
    if inspect.isclass(fn):
        fn = fn()
    names = _names(fn)
    separate = len(names) >= 3 and names[0] != "input"

    async def generate(input):
        if separate:
            more = {"evaluation": input.evaluation} if "evaluation" in names else {}
            out = fn(input.args, input.sample, input.sampling_params, **more)
        else:
            out = fn(input)
        if inspect.isawaitable(out):
            out = await out
        return out if isinstance(out, GenerateFnOutput) else GenerateFnOutput(out)

    return generate


def load_generate_function(path):
    fn = load_function(path)
    return None if fn is None else make_generate_function(fn)


def make_rollout_function(input, fn):
    """An object that is called with RolloutFnTrainInput or RolloutFnEvalInput."""
    if inspect.isclass(fn):
        return fn(input)

    def call(given):
        return fn(input.args, given.rollout_id, input.data_source, evaluation=given.evaluation)

    return call


def load_rollout_function(input, path):
    return make_rollout_function(input, load_function(path))


def call_rollout_function(fn, input):
    out = fn(input)
    return wrap_output(run(out) if inspect.iscoroutine(out) else out, input.evaluation)
