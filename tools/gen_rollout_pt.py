#!/usr/bin/env python3
"""gen_rollout_pt.py DIR - writes recorded rollouts as Miles does, by torch and numpy: miles.pt, a new
file, and legacy.pt, in the container of torch before 1.6; values.json has what they contain."""
import json
import sys

import numpy
import torch


def sample(i, **more):
    n = 3 + i
    fields = dict(
        group_index=i // 2, index=i, rollout_id=None, prompt=[{"role": "user", "content": "two and two?"}],
        tokens=list(range(5, 5 + 4 + n)), multimodal_inputs=None, multimodal_train_inputs=None, response="four \u00e9",
        response_length=n, label="4", reward=0.5 * i, loss_mask=None, weight_versions=["3"],
        rollout_log_probs=[-0.25 * k for k in range(n)], rollout_routed_experts=None, rollout_indexer_topk=None,
        remove_sample=False, teacher_log_probs=None, opd_reverse_kl=None, status="completed",
        metadata={"level": 3, "tags": ["a", None], "share": 0.1}, generate_function_path=None, train_metadata=None,
        spec_info=dict(spec_accept_token_num=0), prefix_cache_info=dict(cached_tokens=0), non_generation_time=0.0)
    fields.update(more)
    return fields


def main():
    where = sys.argv[1]
    tokens = 4 + 4
    routed = (numpy.arange((tokens - 1) * 2 * 2, dtype=numpy.int32) * 37 % 251).reshape(tokens - 1, 2, 2)
    samples = [
        sample(0, status="truncated", reward=1, loss_mask=[1, 0, 1]),
        sample(1, rollout_routed_experts=routed, reward={"score": -1.0, "acc": False, "len": 7}),
        sample(2, weight_versions=["default"], rollout_log_probs=None, label=None, remove_sample=True, prompt="text"),
        sample(3, teacher_log_probs=[-1.0] * 6, metadata={}, rollout_id=9),
    ]
    dump = dict(rollout_id=12, metadata={"time": 1.5}, samples=samples)
    torch.save(dump, where + "/miles.pt")
    torch.save(dump, where + "/legacy.pt", _use_new_zipfile_serialization=False)
    for s in samples:
        if s["rollout_routed_experts"] is not None:
            s["rollout_routed_experts"] = s["rollout_routed_experts"].reshape(-1).tolist()
    with open(where + "/values.json", "w") as f:
        json.dump(samples, f, indent=1)


main()
