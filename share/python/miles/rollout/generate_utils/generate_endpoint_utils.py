"""Requests to /generate of the run's engine, and what they give a sample."""

import copy

from miles.utils.types import Sample


def compute_prompt_ids_from_sample(state, sample, tools=None):
    prompt = sample.prompt
    if not isinstance(prompt, str):
        prompt = state.tokenizer.apply_chat_template(prompt, tools=tools, tokenize=False, add_generation_prompt=True)
    return state.tokenizer.encode(prompt, add_special_tokens=False)


def policy_uses_routing_key(args):
    return args.sglang_router_policy in ("consistent_hashing", "manual")


def compute_routing_headers(args, sample):
    if sample.routing_key:
        return {"X-SMG-Routing-Key": sample.routing_key}
    return None


def compute_request_payload(args, input_ids, sampling_params, multimodal_inputs=None):
    """The request, and None; or None, and the status of a sample that has no room left."""
    params = copy.deepcopy(sampling_params)
    room = params.pop("max_new_tokens", args.rollout_max_response_len)
    if args.rollout_max_context_len:
        room = min(room, args.rollout_max_context_len - len(input_ids))
    if room <= 0:
        return None, Sample.Status.TRUNCATED
    payload = {"input_ids": input_ids, "sampling_params": {**params, "max_new_tokens": room}, "return_logprob": True}
    return payload, None


def add_response(args, sample, output):
    """Appends the tokens of a response, as they were drawn; returns their number."""
    drawn = output["meta_info"].get("output_token_logprobs") or []
    sample.tokens = sample.tokens + [item[1] for item in drawn]
    sample.response_length += len(drawn)
    sample.response += output["text"]
    sample.rollout_log_probs = (sample.rollout_log_probs or []) + [item[0] for item in drawn]
    sample.update_from_meta_info(args, output["meta_info"])
    return len(drawn)


async def update_sample_from_response(args, sample, payload, output, update_loss_mask=False):
    if not sample.response and not sample.tokens:
        sample.tokens = list(payload["input_ids"])
    n = add_response(args, sample, output)
    if update_loss_mask:
        sample.loss_mask = (sample.loss_mask or []) + [1] * n
