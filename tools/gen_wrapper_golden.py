#!/usr/bin/env python3
"""Writes tests/golden/wrappers: tiny multimodal models, with what transformers computes for text.

    pip install torch torchvision transformers safetensors; python3 tools/gen_wrapper_golden.py [NAME...]

Each folder holds a checkpoint as save_pretrained writes it, vision tower included, and
golden.safetensors: token sequences without images, their logits and log-probs in float32 with
eager attention.  kimi_k25 is not in transformers, and gemma3n's vision tower needs timm: these are
text models under the names of the releases, beside tensors of towers.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "tests", "golden", "wrappers")
LENGTHS = [37, 1, 90]

TEXT = dict(vocab_size=83, hidden_size=48, intermediate_size=56, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=12,
            max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
SIGLIP = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
              image_size=28, patch_size=14)
QWEN_VISION = dict(depth=1, hidden_size=16, num_heads=2, patch_size=4, intermediate_size=24,
                   out_hidden_size=48)
MROPE = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 2])
TOKENS = dict(image_token_id=80, video_token_id=81, vision_start_token_id=78, vision_end_token_id=79)
DELTA_NET = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                 linear_num_value_heads=4, linear_key_head_dim=10, linear_value_head_dim=20,
                 linear_conv_kernel_dim=4)

MODELS = {
    "gemma3": ("gemma3", dict(
        text_config=dict(TEXT, sliding_window=8, query_pre_attn_scalar=10,
                         layer_types=["sliding_attention", "full_attention"]),
        vision_config=SIGLIP, mm_tokens_per_image=4, image_token_index=80)),
    "mistral3": ("mistral3", dict(
        text_config=dict(TEXT, model_type="mistral"), tie_word_embeddings=False,
        vision_config=dict(SIGLIP, model_type="pixtral", head_dim=8), image_token_index=80)),
    "qwen2_5_vl": ("qwen2_5_vl", dict(
        text_config={k: v for k, v in dict(TEXT, rope_parameters=MROPE).items() if k != "head_dim"},
        tie_word_embeddings=True, vision_config=QWEN_VISION, **TOKENS)),
    "qwen3_vl": ("qwen3_vl", dict(
        text_config=dict(TEXT, rope_parameters=dict(MROPE, mrope_interleaved=True)), tie_word_embeddings=False,
        vision_config=dict(QWEN_VISION, deepstack_visual_indexes=[0]), **TOKENS)),
    "qwen3_5": ("qwen3_5", dict(
        text_config=dict(TEXT, **DELTA_NET, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
            mrope_section=[1, 1, 1], mrope_interleaved=True)),
        tie_word_embeddings=False, vision_config=QWEN_VISION, **TOKENS)),
}

# Keys of the releases of Qwen3.5 and Qwen3.6 that transformers does not have.
QWEN_RELEASED = dict(attn_output_gate=True, mamba_ssm_dtype="float32", mtp_num_hidden_layers=1,
                     mtp_use_dedicated_embeddings=False, mlp_only_layers=[])
MODELS["qwen3_5_moe"] = ("qwen3_5_moe", dict(MODELS["qwen3_5"][1], text_config=dict(
    MODELS["qwen3_5"][1]["text_config"], num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
    shared_expert_intermediate_size=24, **QWEN_RELEASED), vision_config=dict(QWEN_VISION, num_position_embeddings=16)))
MODELS["gemma4"] = ("gemma4", dict(
    text_config=dict(TEXT, num_hidden_layers=3, num_kv_shared_layers=1, hidden_size_per_layer_input=10,
                     vocab_size_per_layer_input=83, sliding_window=8, global_head_dim=20,
                     layer_types=["sliding_attention", "full_attention", "full_attention"]),
    vision_config=dict(SIGLIP, num_key_value_heads=2, head_dim=8, pooling_kernel_size=2, position_embedding_size=16),
    audio_config=None, image_token_id=80, audio_token_id=81, video_token_id=82, boi_token_id=77, eoi_token_id=78))
MODELS["llama4"] = ("llama4", dict(
    text_config=dict(TEXT, intermediate_size=20, intermediate_size_mlp=56, num_local_experts=4, num_experts_per_tok=1,
                     interleave_moe_layer_step=2, no_rope_layers=[1, 0], attention_chunk_size=16, floor_scale=16,
                     rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=16.0, low_freq_factor=1.0,
                                          high_freq_factor=1.0, original_max_position_embeddings=64)),
    vision_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                       patch_size=14, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16),
    image_token_index=80, boi_token_index=78, eoi_token_index=79))

KIMI = dict(TEXT, kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14,
            num_key_value_heads=4, head_dim=6, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
            moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1, tie_word_embeddings=False)


def spread(model, generator):
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(p + 0.2 * noise if p.dim() == 1 else 0.15 * noise)


def score(model, n_vocab):
    out = {}
    generator = torch.Generator().manual_seed(2)
    for i, n in enumerate(LENGTHS):
        ids = torch.randint(3, n_vocab - 8, (n,), generator=generator)
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0]
        out[f"tokens.{i}"] = ids.int()
        out[f"logits.{i}"] = logits
        if n > 1:
            out[f"logprobs.{i}"] = torch.log_softmax(logits[:-1], -1).gather(-1, ids[1:, None])[:, 0]
    return {k: v.contiguous() for k, v in out.items()}


def make(kind, own, auto):
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **own)
    config._attn_implementation = "eager"
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    spread(model, torch.Generator().manual_seed(3))
    return model


def write(name):
    folder = os.path.join(ROOT, name)
    if name in RENAMED:
        write_renamed(folder, *RENAMED[name])
        return
    kind, own = MODELS[name]
    model = make(kind, own, AutoModelForImageTextToText)
    model.save_pretrained(folder)
    save_file(score(model, TEXT["vocab_size"]), os.path.join(folder, "golden.safetensors"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)


GEMMA3N = dict(TEXT, num_hidden_layers=3, num_kv_shared_layers=1, sliding_window=8, hidden_size_per_layer_input=10,
               vocab_size_per_layer_input=80, laurel_rank=6, activation_sparsity_pattern=[0.8, 0.0, 0.0],
               layer_types=["sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=True)


def kimi_release(tensors, text):
    tensors = {"language_model." + k: v for k, v in tensors.items()}
    tensors["vision_tower.patch_embed.proj.weight"] = torch.randn(4, 6)
    tensors["mm_projector.pre_norm.weight"] = torch.randn(5)
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "float32",
              "text_config": text, "vision_config": {"model_type": "kimi_k25", "vt_hidden_size": 4},
              "tie_word_embeddings": False}
    return tensors, config


def gemma3n_release(tensors, text):
    """Releases have k and v projections in layers that share those of others, too."""
    tensors = {k.replace("model.", "model.language_model.", 1): v for k, v in tensors.items()}
    for unused, like in (("k_proj", "k_proj"), ("v_proj", "v_proj"), ("k_norm", "k_norm")):
        shape = tensors[f"model.language_model.layers.0.self_attn.{like}.weight"].shape
        tensors[f"model.language_model.layers.2.self_attn.{unused}.weight"] = torch.randn(shape)
    tensors["model.vision_tower.timm_model.conv_stem.conv.weight"] = torch.randn(4, 3, 3, 3)
    tensors["model.audio_tower.conformer.0.norm.weight"] = torch.randn(6)
    tensors["model.embed_vision.embedding.weight"] = torch.randn(8, 4)
    rope = text.pop("rope_parameters")
    text.update(rope_theta=rope["full_attention"]["rope_theta"], rope_scaling=None, altup_lr_multiplier=1.0,
                rope_local_base_freq=rope["sliding_attention"]["rope_theta"], query_pre_attn_scalar=12)
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "dtype": "float32",
              "text_config": text, "vision_config": {"model_type": "gemma3n_vision"}, "image_token_id": 79,
              "audio_config": {"model_type": "gemma3n_audio"}, "audio_token_id": 80,
              "audio_soft_tokens_per_image": 188, "vision_soft_tokens_per_image": 256, "boa_token_id": 81,
              "boi_token_id": 82, "eoa_token_id": 78, "eoi_token_id": 77}
    return tensors, config


RENAMED = {"kimi_k25": ("deepseek_v3", KIMI, kimi_release), "gemma3n": ("gemma3n_text", GEMMA3N, gemma3n_release)}


def write_renamed(folder, kind, own, release):
    model = make(kind, own, AutoModelForCausalLM)
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    with open(os.path.join(folder, "config.json")) as f:
        tensors, config = release(load_file(path), json.load(f))
    save_file(tensors, path, metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file(score(model, TEXT["vocab_size"]), os.path.join(folder, "golden.safetensors"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)


if __name__ == "__main__":
    for model_name in sys.argv[1:] or [*MODELS, *RENAMED]:
        write(model_name)
        print(model_name)
