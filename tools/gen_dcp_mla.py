#!/usr/bin/env python3
"""Writes tests/golden/formats/dcp/megatron_deepseek_v3 and _v32: the weights of tests/golden/data/deepseek_v3
and _v32 in bfloat16, under the names that Megatron-Core gives the layers of a model with MLA, by
torch.distributed.checkpoint.  The indexer of the first layer of _v32 has Miles' names, the others have
Megatron-Core's.

    python3 tools/gen_dcp_mla.py     (torch, safetensors)
"""
import argparse
import os
import re

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

FROM = "tests/golden/data/%s/model.safetensors"
TO = "tests/golden/formats/dcp/megatron_%s"
WHOLE = {"model.embed_tokens.weight": "embedding.word_embeddings.weight",
         "model.norm.weight": "decoder.final_layernorm.weight", "lm_head.weight": "output_layer.weight"}
PARTS = {"input_layernorm.weight": "input_layernorm.weight",
         "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
         "self_attn.q_proj.weight": "self_attention.linear_q_proj.weight",
         "self_attn.q_a_proj.weight": "self_attention.linear_q_down_proj.weight",
         "self_attn.q_a_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
         "self_attn.q_b_proj.weight": "self_attention.linear_q_up_proj.weight",
         "self_attn.kv_a_proj_with_mqa.weight": "self_attention.linear_kv_down_proj.weight",
         "self_attn.kv_a_layernorm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
         "self_attn.kv_b_proj.weight": "self_attention.linear_kv_up_proj.weight",
         "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
         "mlp.gate.weight": "mlp.router.weight",
         "mlp.gate.e_score_correction_bias": "mlp.router.expert_bias",
         "mlp.down_proj.weight": "mlp.linear_fc2.weight",
         "mlp.shared_experts.down_proj.weight": "mlp.shared_experts.linear_fc2.weight"}


def layer_state(layer, w):
    """The tensors of one layer; w: its weights by their names in the layer."""
    out = {}
    for name in PARTS:
        if name in w:
            out[PARTS[name]] = w.pop(name)
    for name in [n for n in w if n.startswith("self_attn.indexer.")]:
        part = name[len("self_attn.indexer."):]
        core = "core_attention.indexer." + ("" if "norm" in part else "linear_")
        out["self_attention." + (core if layer else "") + part] = w.pop(name)
    for mlp in ("mlp", "mlp.shared_experts"):
        gate, up = w.pop(mlp + ".gate_proj.weight", None), w.pop(mlp + ".up_proj.weight", None)
        if gate is not None:
            out[mlp + ".linear_fc1.weight"] = torch.cat([gate, up])
    experts = sorted({int(m[1]) for n in w if (m := re.match(r"mlp\.experts\.(\d+)\.", n))})
    if experts:
        take = lambda e, p: w.pop(f"mlp.experts.{e}.{p}_proj.weight")
        out["mlp.experts.experts.linear_fc1.weight"] = torch.stack(
            [torch.cat([take(e, "gate"), take(e, "up")]) for e in experts])
        out["mlp.experts.experts.linear_fc2.weight"] = torch.stack([take(e, "down") for e in experts])
    if "mlp.experts.gate_up_proj" in w:
        out["mlp.experts.experts.linear_fc1.weight"] = w.pop("mlp.experts.gate_up_proj")
        out["mlp.experts.experts.linear_fc2.weight"] = w.pop("mlp.experts.down_proj")
    assert not w, sorted(w)
    return {f"decoder.layers.{layer}.{n}": t for n, t in out.items()}


def write(model):
    state, layers, to = {}, {}, TO % model
    for name, t in load_file(FROM % model).items():
        t = t if "e_score_correction_bias" in name else t.to(torch.bfloat16)
        if name in WHOLE:
            state[WHOLE[name]] = t.contiguous()
        else:
            m = re.match(r"model\.layers\.(\d+)\.(.*)", name)
            layers.setdefault(int(m[1]), {})[m[2]] = t
    for i, w in layers.items():
        state.update(layer_state(i, w))
    folder = to + "/iter_0000003"
    os.makedirs(folder, exist_ok=True)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    torch.save({"args": argparse.Namespace(num_attention_heads=4, hidden_size=64), "iteration": 3}, folder + "/common.pt")
    with open(to + "/latest_checkpointed_iteration.txt", "w") as f:
        f.write("3")


if __name__ == "__main__":
    write("deepseek_v3")
    write("deepseek_v32")
