"""Environments of the verifiers package train the model of the run.

    VERIFIERS_ENV=my_environment miles train ...
        --custom-generate-function-path miles.adapters.verifiers.generate

VERIFIERS_ENV names the environment, VERIFIERS_ENV_ARGS has its arguments, as JSON.  The package has
had two interfaces; which one is installed decides what these mean.

verifiers 0.1: an installed environment (vf.load_environment), or a module with a function
load_environment, and its arguments.  A row of the prompt data is an example of the environment: its
prompt (messages), the label as `answer`, and `info` and `task` of its metadata.

verifiers.v1 (0.3 and later): an installed taskset, and the other fields of the run's `env` block (agent,
taskset, ...).  `task` of a row's metadata is the task's index in the taskset.  Needs
--use-session-server.

The environment drives the conversation and gives the reward."""

import importlib.util
import json
import os


def selection():
    """The environment that the user names, and its arguments."""
    name = os.environ.get("VERIFIERS_ENV")
    if not name:
        raise ValueError("VERIFIERS_ENV is not set: name an environment of verifiers")
    given = os.environ.get("VERIFIERS_ENV_ARGS") or "{}"
    try:
        given = json.loads(given)
    except ValueError as e:
        raise ValueError(f"VERIFIERS_ENV_ARGS is not JSON ({e}): {given}") from None
    if not isinstance(given, dict):
        raise ValueError(f"VERIFIERS_ENV_ARGS is not an object: {given}")
    return name, given


async def generate(input):
    if importlib.util.find_spec("verifiers") is None:
        raise ImportError("the package verifiers is not installed: pip install verifiers")
    if importlib.util.find_spec("verifiers.v1") is None or importlib.util.find_spec("verifiers.envs") is not None:
        from miles.adapters import verifiers_v0 as adapter
    else:
        from miles.adapters import verifiers_v1 as adapter
    return await adapter.generate(input)
