"""A conversation of an environment with the run's engine, recorded as samples to train on."""

import copy

from miles.rollout.generate_utils.generate_endpoint_utils import compute_request_payload
from miles.utils.http_utils import post
from miles.utils.types import Sample


class Truncated(Exception):
    """There is no room for another turn."""


class Episode:
    """Calls of the model with growing lists of messages.

    Drawn tokens are never tokenized again: a call whose messages continue those of an earlier
    one appends the tokens of what is new, as the chat template renders it, with loss mask 0.
    A call that continues none (another agent, a history that was rewritten) begins a sample of
    its own.  Each branch of a tree of calls is a sample."""

    def __init__(self, input):
        self.input, self.args = input, input.args
        self.tokenizer = input.state.tokenizer
        self.samples, self.texts = [], []  # of each sample, its text so far

    async def chat(self, messages, tools=None, **sampling):
        """The model's answer to the messages: its text, and why it ended ("stop" or "length").
        `sampling` changes sampling parameters of this call, under SGLang's names."""
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
        number = self._find(text)
        sample = self.samples[number]
        added = self.tokenizer.encode(text[len(self.texts[number]) :], add_special_tokens=False)
        ids = sample.tokens + added
        params = {**self.input.sampling_params, **sampling}
        left = self.input.sampling_params["max_new_tokens"]
        left -= sample.response_length + (len(added) if sample.tokens else 0)
        params["max_new_tokens"] = min(left, params["max_new_tokens"])
        payload, _ = compute_request_payload(self.args, ids, params)
        if payload is None:
            sample.status = Sample.Status.TRUNCATED
            raise Truncated("the conversation has no room for another turn")
        url = f"http://{self.args.sglang_router_ip}:{self.args.sglang_router_port}/generate"
        output = await post(url, payload)
        return self._record(number, text, added, output)

    def _find(self, text):
        """The sample that this text continues, the longest; or a new one."""
        fits = [i for i, t in enumerate(self.texts) if t and text.startswith(t)]
        if fits:
            return max(fits, key=lambda i: len(self.texts[i]))
        sample = copy.deepcopy(self.input.sample)
        sample.tokens, sample.response, sample.response_length = [], "", 0
        sample.rollout_log_probs, sample.loss_mask = [], []
        self.samples.append(sample)
        self.texts.append("")
        return len(self.samples) - 1

    def _record(self, number, text, added, output):
        sample, meta = self.samples[number], output["meta_info"]
        drawn = meta.get("output_token_logprobs") or []
        ids = [item[1] for item in drawn]
        if sample.tokens:  # what the environment said
            sample.response += text[len(self.texts[number]) :]
            sample.response_length += len(added)
            sample.loss_mask += [0] * len(added)
            sample.rollout_log_probs += [0.0] * len(added)
        else:
            sample.prompt = text
        sample.tokens = sample.tokens + added + ids
        sample.response_length += len(ids)
        sample.loss_mask += [1] * len(ids)
        sample.rollout_log_probs += [item[0] for item in drawn]
        said = self.tokenizer.decode(ids)
        sample.response += said
        sample.update_from_meta_info(self.args, meta)
        self.texts[number] = text + said
        reason = meta["finish_reason"]["type"]
        return self._without_end(ids, said), "length" if reason == "length" else "stop"

    def _without_end(self, ids, said):
        """The answer without the token that ended it."""
        plain = self.tokenizer.decode(ids, skip_special_tokens=True)
        return plain if said.startswith(plain) else said

    def finish(self, reward=None, metadata=None):
        """The samples, with the episode's reward if they have none."""
        for sample in self.samples:
            if sample.reward is None:
                sample.reward = reward
            if metadata:
                sample.metadata = {**(sample.metadata or {}), **metadata}
        if not self.samples:
            raise ValueError("the environment ended without a call of the model")
        return self.samples if len(self.samples) > 1 else self.samples[0]


def messages_of(prompt):
    """The prompt of a sample as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return copy.deepcopy(prompt)
