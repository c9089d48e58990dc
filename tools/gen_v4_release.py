#!/usr/bin/env python3
"""Writes tests/golden/quant/fp4_deepseek_v4: a tiny DeepSeek-V4 as it is released.

    pip install torch transformers safetensors; python3 tools/gen_v4_release.py

Names and config.json are those of the release: linear layers in FP8 with power-of-two scales for
blocks of 128x128, routed experts in FP4 with exponents for 1x32 (two codes in an int8), a tensor
of the layer that predicts further tokens.  golden.safetensors has the logits of the model that
transformers loads from it and dequantizes, in float32, and the first rows of two of its weights.
"""
import json
import os
import re
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config

from gen_golden import COMMON, MODELS, old_style, spread

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "tests", "golden", "quant", "fp4_deepseek_v4")
BLOCK, GROUP = 128, 32
FP8 = re.compile(r"\.attn\.(wq_a|wq_b|wkv|wo_b|indexer\.wq_b)\.weight$|\.shared_experts\.w[123]\.weight$")
FP4 = re.compile(r"\.experts\.\d+\.w[123]\.weight$")
F32 = re.compile(r"hc_|sink|norm|ape$|gate\.bias$|tid2eid$")
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def release_name(name):
    for old, new in (("model.embed_tokens.", "embed."), ("model.hc_head.hc_", "hc_head_"), ("model.", ""),
                     (".attn.norm.", ".attn.kv_norm.")):
        name = name.replace(old, new)
    return name


def exponents(most, largest):
    """The powers of two that bring `most` to at most `largest`."""
    return torch.exp2(torch.ceil(torch.log2(most.clamp(min=1e-30) / largest)))


def to_fp8(w):
    rows, cols = (-(-n // BLOCK) for n in w.shape)
    padded = torch.zeros(rows * BLOCK, cols * BLOCK)
    padded[: w.shape[0], : w.shape[1]] = w
    scale = exponents(padded.view(rows, BLOCK, cols, BLOCK).abs().amax((1, 3)), 448.0)
    wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: w.shape[0], : w.shape[1]]
    return (w / wide).to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)


def to_fp4(w):
    groups = w.view(w.shape[0], -1, GROUP)
    scale = exponents(groups.abs().amax(-1), 6.0)
    x = (groups / scale[..., None]).view(w.shape)
    code = (x.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (x < 0)
    packed = code[:, 0::2] + 16 * code[:, 1::2]
    return packed.to(torch.uint8).view(torch.int8), scale.to(torch.float8_e8m0fnu)


def released(tensors):
    out = {}
    for name, w in tensors.items():
        name = release_name(name)
        if FP8.search(name) or FP4.search(name):
            code, scale = (to_fp8 if FP8.search(name) else to_fp4)(w)
            out[name], out[name.replace(".weight", ".scale")] = code, scale
        else:
            out[name] = w if F32.search(name) else w.bfloat16()
    out["mtp.0.e_proj.weight"], out["mtp.0.e_proj.scale"] = to_fp8(torch.randn(8, 12))
    return out


def write_config(config):
    config = old_style(config)
    config.update(torch_dtype="bfloat16", expert_dtype="fp4", topk_method="noaux_tc", quantization_config=dict(
        activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[BLOCK, BLOCK]))
    with open(os.path.join(FOLDER, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def write_golden():
    model = AutoModelForCausalLM.from_pretrained(
        FOLDER, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
        quantization_config=FineGrainedFP8Config(dequantize=True)).float().eval()
    golden, generator = {}, torch.Generator().manual_seed(2)
    for i, n in enumerate((37, 1, 90)):
        ids = torch.randint(3, model.config.vocab_size, (n,), generator=generator)
        with torch.no_grad():
            golden[f"logits.{i}"] = model(ids[None]).logits[0]
        golden[f"tokens.{i}"] = ids.int()
    layer = model.model.layers[1]
    golden["weight.layers.1.attn.wq_b.weight"] = layer.self_attn.q_b_proj.weight[:8]
    golden["weight.layers.1.ffn.experts.0.w2.weight"] = layer.mlp.experts.down_proj[0, :8]
    save_file({k: v.detach().contiguous() for k, v in golden.items()}, os.path.join(FOLDER, "golden.safetensors"))


def main():
    os.makedirs(FOLDER, exist_ok=True)
    torch.manual_seed(1)
    own = dict(MODELS["deepseek_v4"][1], hidden_size=64, moe_intermediate_size=32, intermediate_size=32, n_routed_experts=4)
    config = AutoConfig.for_model("deepseek_v4", **{**COMMON, **own})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    spread(model, torch.Generator().manual_seed(3))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json")) as f:
            write_config(json.load(f))
    save_file(released(tensors), os.path.join(FOLDER, "model.safetensors"))
    write_golden()


if __name__ == "__main__":
    main()
