#!/usr/bin/env python3
"""Writes tests/golden/data and tests/golden/sharded: tiny models of each family with what transformers computes.

    pip install torch transformers safetensors; python3 tools/gen_golden.py [NAME...]
    python3 tools/gen_golden.py --bf16 [NAME...]
                                            writes tests/golden/bf16.txt: how far transformers in
                                            bf16 is from itself in float32, over the sequences of
                                            each folder and FURTHER of FURTHER_LENGTH tokens

Each folder holds a checkpoint (config.json in the newer key style, config_old.json in the
older one), and golden.safetensors: token sequences, logits, log-probs, the loss and every
gradient in float32 with eager attention, and a greedy continuation.  Sizes are odd on
purpose: widths that are no multiple of 16, sequences longer than windows and key tiles.
tests/golden/sharded holds one of them again as transformers splits it into shards.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "golden", "data")
SHARDED = os.path.join(HERE, "..", "tests", "golden", "sharded")
SHARDED_MODEL, SHARD_SIZE = "qwen3", "60KB"
LENGTHS = [37, 70, 1, 150]
FURTHER, FURTHER_LENGTH = 12, 100
FROZEN = ("e_score_correction_bias", "layer_scalar", "gate.bias", "tid2eid")  # tensors without a gradient

COMMON = dict(vocab_size=83, hidden_size=48, intermediate_size=56, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, head_dim=12,
              max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)

DEEPSEEK_MOE = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=1,
                    norm_topk_prob=True, routed_scaling_factor=1.5, num_nextn_predict_layers=1)

DELTA_NET = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                 linear_num_value_heads=4, linear_key_head_dim=10, linear_value_head_dim=20,
                 linear_conv_kernel_dim=4, rope_parameters=dict(
                     rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))

MLA = dict(kv_lora_rank=24, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14,
           num_key_value_heads=4, head_dim=6)

# Fewer heads would often have no product above 0 for several keys, which then tie.
INDEXER = dict(index_n_heads=16, index_head_dim=10, index_topk=12)

GEMMA4_ROPE = dict(full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.5),
                   sliding_attention=dict(rope_type="default", rope_theta=10000.0))
GEMMA4 = dict(tie_word_embeddings=True, sliding_window=8, global_head_dim=20, vocab_size_per_layer_input=83,
              final_logit_softcapping=5.0, rope_parameters=GEMMA4_ROPE)

MODELS = {
    "llama": ("llama", dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_tied": ("llama", dict(tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                                 num_key_value_heads=4)),
    "llama_linear": ("llama", dict(rope_parameters=dict(
        rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "llama4_text": ("llama4_text", dict(
        num_hidden_layers=3, intermediate_size=20, intermediate_size_mlp=56, num_local_experts=5, num_experts_per_tok=2,
        moe_layers=[0, 2], no_rope_layers=[1, 0, 1], attention_chunk_size=32, floor_scale=16, attn_scale=0.3,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_yarn": ("llama", dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0,
        original_max_position_embeddings=128))),
    "mistral": ("mistral", dict(sliding_window=8)),
    "qwen2": ("qwen2", dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=20,
                            max_window_layers=1)),
    "qwen3": ("qwen3", dict()),
    "qwen3_moe": ("qwen3_moe", dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True,
        num_hidden_layers=3, mlp_only_layers=[1])),
    "qwen3_moe_raw": ("qwen3_moe", dict(
        num_experts=5, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=False)),
    "gemma2": ("gemma2", dict(sliding_window=8, query_pre_attn_scalar=10,
                              attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "gemma3_text": ("gemma3_text", dict(
        sliding_window=8, query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "gemma3n_text": ("gemma3n_text", dict(
        num_hidden_layers=5, num_kv_shared_layers=2, sliding_window=8, hidden_size_per_layer_input=10,
        vocab_size_per_layer_input=80, laurel_rank=6, altup_active_idx=1, intermediate_size=[56, 40, 56, 56, 40],
        activation_sparsity_pattern=[0.8, 0.0, 0.6, 0.0, 0.0], final_logit_softcapping=5.0, pad_token_id=None,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="default", rope_theta=1000000.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "gemma4_text": ("gemma4_text", dict(
        GEMMA4, num_hidden_layers=5, num_kv_shared_layers=3, hidden_size_per_layer_input=10, use_double_wide_mlp=True,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"])),
    "gemma4_text_moe": ("gemma4_text", dict(
        GEMMA4, num_hidden_layers=3, hidden_size_per_layer_input=0, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=20,
        use_bidirectional_attention="vision", layer_types=["sliding_attention"] * 2 + ["full_attention"])),
    "mixtral": ("mixtral", dict(intermediate_size=28, num_local_experts=5, num_experts_per_tok=2, sliding_window=8)),
    "glm4_moe": ("glm4_moe", dict(
        DEEPSEEK_MOE, head_dim=16, use_qk_norm=True, attention_bias=True, first_k_dense_replace=1,
        n_group=4, topk_group=2)),
    "minimax_m2": ("minimax_m2", dict(
        intermediate_size=20, num_local_experts=7, num_experts_per_tok=2, rotary_dim=6)),
    "gpt_oss": ("gpt_oss", dict(
        intermediate_size=20, num_local_experts=5, num_experts_per_tok=2, sliding_window=8,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=64))),
    "qwen3_next": ("qwen3_next", dict(
        DELTA_NET, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
        shared_expert_intermediate_size=24, norm_topk_prob=True)),
    "qwen3_5_text": ("qwen3_5_text", dict(DELTA_NET)),
    "nemotron_h": ("nemotron_h", dict(
        layers_block_type=["linear_attention", "full_attention", "mlp", "moe"], mamba_num_heads=6,
        mamba_head_dim=20, ssm_state_size=10, n_groups=2, conv_kernel=4, chunk_size=16,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
        moe_shared_expert_intermediate_size=24, routed_scaling_factor=1.5)),
    "nemotron_h_latent": ("nemotron_h", dict(
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"], mamba_num_heads=4, mamba_head_dim=12,
        ssm_state_size=10, n_groups=2, conv_kernel=4, chunk_size=16, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=20, moe_latent_size=28, moe_shared_expert_intermediate_size=24,
        routed_scaling_factor=1.5)),
    "deepseek_v3": ("deepseek_v3", dict(
        **DEEPSEEK_MOE, **MLA, q_lora_rank=20, first_k_dense_replace=1, n_group=4, topk_group=2,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.8,
                             original_max_position_embeddings=64))),
    "glm4_moe_lite": ("glm4_moe_lite", dict(
        **DEEPSEEK_MOE, **MLA, q_lora_rank=None, n_group=1, topk_group=1, attention_bias=True)),
    "deepseek_v32": ("deepseek_v32", dict(
        **DEEPSEEK_MOE, **MLA, **INDEXER, q_lora_rank=20, first_k_dense_replace=1, n_group=4, topk_group=2)),
    "glm_moe_dsa": ("glm_moe_dsa", dict(
        **DEEPSEEK_MOE, **MLA, **INDEXER, q_lora_rank=20, first_k_dense_replace=2, num_hidden_layers=3,
        indexer_types=["full", "shared", "full"])),
    "deepseek_v4": ("deepseek_v4", dict(
        num_hidden_layers=4, num_key_value_heads=1, head_dim=20, partial_rotary_factor=0.3, q_lora_rank=20,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                     "compressed_sparse_attention"],
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=32), sliding_window=8,
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe"], o_groups=2, o_lora_rank=12, index_n_heads=16,
        index_head_dim=10, index_topk=6, moe_intermediate_size=20, intermediate_size=20, n_routed_experts=8,
        num_experts_per_tok=2, swiglu_limit=1.0, hc_sinkhorn_iters=4,
        rope_parameters=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             original_max_position_embeddings=64))),
    "olmo2": ("olmo2", dict()),
    "phi3": ("phi3", dict(sliding_window=40, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "smollm3": ("smollm3", dict(
        num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=8)),
    "glm4": ("glm4", dict(head_dim=16, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
}


def old_deepseek_v4(old, rope):
    ratio = dict(sliding_attention=0, compressed_sparse_attention=4, heavily_compressed_attention=128)
    rates = old.pop("compress_rates")
    old["compress_ratios"] = [ratio[t] for t in old.pop("layer_types")] + [0]  # and of the MTP layer
    old["compress_rate_csa"] = rates["compressed_sparse_attention"]
    old["compress_rate_hca"] = rates["heavily_compressed_attention"]
    old["num_hash_layers"] = old.pop("mlp_layer_types").count("hash_moe")
    old.pop("partial_rotary_factor")
    old["rope_theta"] = rope["main"]["rope_theta"]
    old["compress_rope_theta"] = rope["compress"]["rope_theta"]
    keys = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
    old["rope_scaling"] = dict(type="yarn", **{k: rope["compress"][k] for k in keys})
    return old


def old_style(config):
    """The same config with the keys that published checkpoints have."""
    old = dict(config)
    rope = old.pop("rope_parameters", None)
    old["torch_dtype"] = old.pop("dtype")
    if old["model_type"] == "deepseek_v4":
        return old_deepseek_v4(old, rope)
    if old["model_type"] == "nemotron_h":
        letter = dict(linear_attention="M", full_attention="*", mlp="-", moe="E")
        old["hybrid_override_pattern"] = "".join(letter[t] for t in old.pop("layers_block_type"))
        old["num_hidden_layers"] = len(old["hybrid_override_pattern"])
        old["time_step_limit"] = [0.0, float("inf")]
    if old["model_type"] == "gemma4_text":
        full = list(old.pop("per_layer_config").values())[0]
        old["global_head_dim"] = full["head_dim"]
        old["num_global_key_value_heads"] = full.get("num_key_value_heads")
        old["rope_parameters"] = rope
        return old
    if rope is None:
        return old
    if "full_attention" in rope:
        old["rope_theta"] = rope["full_attention"].pop("rope_theta")
        old["rope_scaling"] = rope["full_attention"]
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        return old
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope.get("rope_type", "default") != "default":
        rope["type"] = rope.pop("rope_type")
        old["rope_scaling"] = rope
    if "num_local_experts" in old and old["model_type"] == "qwen3_moe":
        old["num_experts"] = old.pop("num_local_experts")
    return old


def spread(model, generator):
    """Weights far enough from their initial values that every path matters."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(p + 0.2 * noise if p.dim() == 1 else 0.15 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("tid2eid"):
                n = model.config.n_routed_experts
                rows = [torch.randperm(n, generator=generator)[: buffer.shape[1]] for _ in buffer]
                buffer.copy_(torch.stack(rows))
            if name.endswith("layer_scalar"):
                buffer.copy_(0.8 + 0.1 * torch.randn(buffer.shape, generator=generator))


def score(model, names):
    out, chosen = {}, []
    generator = torch.Generator().manual_seed(2)
    for i, n in enumerate(LENGTHS):
        ids = torch.randint(3, model.config.vocab_size, (n,), generator=generator)
        logits = model(ids[None]).logits[0]
        out[f"tokens.{i}"] = ids.int()
        out[f"logits.{i}"] = logits.detach()
        if n > 1:
            lp = torch.log_softmax(logits[:-1], -1).gather(-1, ids[1:, None])[:, 0]
            out[f"logprobs.{i}"] = lp.detach()
            chosen.append(lp)
    loss = -torch.cat(chosen).mean()
    loss.backward()
    out["loss"] = loss.detach()[None]
    for name, grad in gradients(model, names).items():
        out["grad." + name] = grad
    return out


def put_expert(grads, names, name, e, projections, grad):
    """Of the names that a family may have for an expert's projection, the one it has."""
    stem = name[: name.rindex(".")] + f".{e}."
    for folder in (stem, stem.replace(".mlp.", ".block_sparse_moe.")):
        for projection in projections:
            if f"{folder}{projection}.weight" in names:
                grads[f"{folder}{projection}.weight"] = grad
                return
    raise SystemExit(f"{name}: expert {e} has no name in the checkpoint")


# Parameters of DeepSeek-V4 in transformers and in its checkpoints, in this order.
V4_NAMES = [
    ("lm_head.", "head."), (".compressor.indexer.scorer.", ".indexer."), (".compressor.indexer.q_b_", ".indexer.q_b_"),
    (".compressor.indexer.", ".indexer.compressor."), (".self_attn.", ".attn."), (".mlp.", ".ffn."),
    (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."), (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"), (".sinks", ".attn_sink"), (".kv_norm.", ".norm."), (".position_bias", ".ape"),
    (".q_a_proj.", ".wq_a."), (".q_b_proj.", ".wq_b."), (".kv_proj.", ".wkv."), (".compressor.gate_proj.", ".compressor.wgate."),
    (".o_a_proj.", ".wo_a."), (".o_b_proj.", ".wo_b."), (".q_a_norm.", ".q_norm."), ("experts.gate_proj.", "experts.w1."),
    ("experts.up_proj.", "experts.w3."), ("experts.down_proj.", "experts.w2."),
]


def published(name, names):
    """Nemotron's checkpoints call the model backbone; those of DeepSeek-V4 have other names altogether."""
    if any(".hc_attn_fn" in n for n in names):
        for old, new in V4_NAMES:
            name = name.replace(old, new)
        return name
    other = name.replace("model.", "backbone.", 1)
    return other if any(n.startswith("backbone.") for n in names) else name


def gradients(model, names):
    """Under the names of the checkpoint: experts are stacked and fused in memory only."""
    grads = {}
    for name, p in model.named_parameters():
        if ".indexer." in name:
            continue  # nothing that is chosen has a gradient
        if name in names:
            grads[name] = p.grad
        elif name.endswith("experts.gate_up_proj"):
            gate, up = p.grad.chunk(2, dim=1)
            for e in range(p.shape[0]):
                put_expert(grads, names, published(name, names), e, ("gate_proj", "w1"), gate[e])
                put_expert(grads, names, published(name, names), e, ("up_proj", "w3"), up[e])
        elif name.endswith("experts.up_proj"):
            for e in range(p.shape[0]):
                put_expert(grads, names, published(name, names), e, ("up_proj",), p.grad[e])
        elif published(name, names) in names:
            grads[published(name, names)] = p.grad
        elif name.endswith("experts.down_proj"):
            for e in range(p.shape[0]):
                put_expert(grads, names, published(name, names), e, ("down_proj", "w2"), p.grad[e])
        elif name.replace(".mlp.", ".block_sparse_moe.") in names:
            grads[name.replace(".mlp.", ".block_sparse_moe.")] = p.grad
        else:
            raise SystemExit(f"{name}: no such name in the checkpoint")
    without = {name for name in names if name.endswith(FROZEN) or ".indexer." in name}
    if set(grads) | without != set(names):
        raise SystemExit(f"gradients and checkpoint differ: {set(grads) ^ set(names)}")
    return grads


def greedy(model, ids):
    ids = ids[:20].long()
    with torch.no_grad():
        for _ in range(12):
            ids = torch.cat([ids, model(ids[None]).logits[0, -1].argmax()[None]])
    return ids.int()


def write(name):
    kind, own = MODELS[name]
    folder = os.path.join(DATA, name)
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**COMMON, **own})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    spread(model, torch.Generator().manual_seed(3))
    model.save_pretrained(folder)
    for extra in ("generation_config.json",):
        path = os.path.join(folder, extra)
        if os.path.exists(path):
            os.remove(path)
    if name == SHARDED_MODEL:
        model.save_pretrained(SHARDED, max_shard_size=SHARD_SIZE)
        os.remove(os.path.join(SHARDED, "generation_config.json"))
    names = list(load_file(os.path.join(folder, "model.safetensors")))
    golden = score(model, names)
    golden["greedy"] = greedy(model, golden["tokens.0"])
    save_file({k: v.contiguous() for k, v in golden.items()},
              os.path.join(folder, "golden.safetensors"))
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(folder, "config_old.json"), "w") as f:
        json.dump(old_style(config), f, indent=2)
        f.write("\n")


def further_tokens(i, n_vocab):
    """As in tests/golden/test_golden.c: enough tokens that one more or one less whose experts
    change does not decide."""
    x, ids = i, []
    for _ in range(FURTHER_LENGTH):
        x = (x * 1103515245 + 12345) & 0xffffffff
        ids.append((x >> 16) % n_vocab)
    return torch.tensor(ids)


def all_logits(folder, sequences, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
    with torch.no_grad():
        return [model(ids[None].long()).logits[0].double() for ids in sequences]


def bf16_error(name):
    """The distance of all logits in bf16 from those in float32, relative to their norm."""
    folder = os.path.join(DATA, name)
    golden = load_file(os.path.join(folder, "golden.safetensors"))
    sequences = [golden[f"tokens.{i}"] for i in range(len(LENGTHS))]
    sequences += [further_tokens(i, golden["logits.0"].shape[1]) for i in range(FURTHER)]
    want = all_logits(folder, sequences, torch.float32)
    got = all_logits(folder, sequences, torch.bfloat16)
    off = sum((a - b).square().sum().item() for a, b in zip(got, want))
    return (off / sum(b.square().sum().item() for b in want)) ** 0.5


def write_bf16(names):
    """All lines of bf16.txt, of which those of `names` are computed again."""
    path = os.path.join(DATA, "..", "bf16.txt")
    with open(path) as old:
        lines = dict(line.split() for line in old)
    for each in names:
        lines[each] = f"{bf16_error(each):.6g}"
    with open(path, "w") as out:
        out.writelines(f"{each} {lines[each]}\n" for each in MODELS if each in lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bf16"]:
        write_bf16(sys.argv[2:] or MODELS)
    else:
        for wanted in sys.argv[1:] or MODELS:
            write(wanted)
