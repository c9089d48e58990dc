"""OpenEnv environments.

    OPENENV_ENV_URL=http://localhost:8000 miles train ...
        --custom-generate-function-path miles.adapters.openenv.OpenEnv

An episode is a session of the environment's server: reset, then the model's answers as actions
until the environment is done, or --generate-max-turns is reached.  The reward is the sum of the
rewards of its steps.  A class derived from OpenEnv says how answers become actions and
observations messages, where the defaults do not fit."""

import os

from miles.adapters.episode import Episode, Truncated, messages_of
from miles.rollout.base_types import GenerateFnOutput


def fields_of(value):
    """The fields of an observation: a dict, a pydantic model or another object."""
    if isinstance(value, dict):
        return value
    return value.model_dump() if hasattr(value, "model_dump") else dict(vars(value))


class OpenEnv:
    #: The field of an action that has the model's answer.
    action_field = os.environ.get("OPENENV_ACTION_FIELD", "message")
    #: Fields of an observation that may have a text, in this order.
    text_fields = ("prompt", "message", "messages", "text", "output", "stdout", "stderr", "result", "response")

    def client(self, sample):
        """The connection of an episode."""
        from openenv.core.generic_client import GenericEnvClient

        metadata = sample.metadata or {}
        url = metadata.get("env_url") or os.environ.get("OPENENV_ENV_URL", "http://localhost:8000")
        return GenericEnvClient(base_url=url)

    def reset_arguments(self, sample):
        """Arguments of reset: metadata.reset of the row."""
        return (sample.metadata or {}).get("reset") or {}

    def action(self, answer, sample):
        return {self.action_field: answer}

    def message(self, observation, sample):
        """What the user says about an observation; "": nothing."""
        fields = fields_of(observation)
        for name in self.text_fields:
            if isinstance(fields.get(name), str) and fields[name]:
                return fields[name]
        return "\n".join(f"{k}: {v}" for k, v in fields.items() if k not in ("done", "reward", "metadata") and v)

    async def __call__(self, input):
        episode, sample, total = Episode(input), input.sample, 0.0
        messages = messages_of(sample.prompt)
        try:
            async with self.client(sample) as env:
                result = await env.reset(**self.reset_arguments(sample))
                first = self.message(result.observation, sample)
                if first:
                    messages[-1] = {**messages[-1], "content": messages[-1]["content"] + "\n" + first}
                for _ in range(input.args.generate_max_turns):
                    answer, _ = await episode.chat(messages)
                    result = await env.step(self.action(answer, sample))
                    total += float(result.reward or 0.0)
                    if result.done:
                        break
                    messages += [
                        {"role": "assistant", "content": answer},
                        {"role": "user", "content": self.message(result.observation, sample)},
                    ]
        except Truncated:
            pass
        return GenerateFnOutput(episode.finish(reward=total))
