"""One request to the engine for each sample."""

from miles.rollout.base_types import GenerateFnOutput
from miles.rollout.generate_utils.generate_endpoint_utils import (
    compute_prompt_ids_from_sample,
    compute_request_payload,
    compute_routing_headers,
    update_sample_from_response,
)
from miles.utils.http_utils import post
from miles.utils.types import Sample


async def generate(input):
    args, sample = input.args, input.sample
    params = dict(input.sampling_params)
    assert sample.status in (Sample.Status.PENDING, Sample.Status.ABORTED), f"sample {sample.index} is {sample.status}"
    prompt_ids = compute_prompt_ids_from_sample(input.state, sample)
    ids = prompt_ids
    if sample.response:  # the rest of a partial answer
        ids = sample.tokens
        params["max_new_tokens"] -= len(sample.tokens) - len(prompt_ids)
    payload, status = compute_request_payload(args, ids, params)
    if payload is None:
        sample.status = status
        sample.tokens = sample.tokens or list(ids)
        return GenerateFnOutput(sample)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    output = await post(url, payload, headers=compute_routing_headers(args, sample))
    await update_sample_from_response(args, sample, payload, output, update_loss_mask=sample.loss_mask is not None)
    return GenerateFnOutput(sample)
