#!/usr/bin/env python3
"""Writes tests/golden/mtp/mimo: a tiny MiMo model with a multi-token prediction layer.

    pip install torch transformers safetensors; python3 tools/gen_mimo_golden.py

The trunk is transformers' Qwen2, and so is the layer within the module.  golden.safetensors has
the module's logits, the loss and gradients as Miles computes them, and a greedy draft; the names
are those of the other models in tests/golden/mtp.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "tests", "golden", "mtp", "mimo")
LENGTHS, PROMPTS = [29, 17, 40], [11, 1, 25]
SHAPE = dict(vocab_size=128, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
             rope_theta=640000.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
             use_sliding_window=False, bos_token_id=1, eos_token_id=2)


class Module(torch.nn.Module):
    """norm(layer(project([norm(hidden); norm(embedding of the next token)])))"""

    def __init__(self, config):
        super().__init__()
        self.token_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.final_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layer = Qwen2DecoderLayer(config, 0)

    def forward(self, embedded, hidden, rotary):
        n = embedded.shape[1]
        position = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        x = self.input_proj(torch.cat([self.hidden_layernorm(hidden),
                                       self.token_layernorm(embedded)], -1))
        x = self.layer(x, attention_mask=mask, position_ids=position,
                       position_embeddings=rotary(x, position))
        return self.final_layernorm(x[0] if isinstance(x, tuple) else x)


def name_of(parameter):
    return "model.mtp_layers.0." + parameter.removeprefix("layer.")


def random_weights(module, generator):
    for name, p in module.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        with torch.no_grad():
            p.copy_(1 + 0.1 * noise if "norm" in name else 0.15 * noise)


def main():
    g = torch.Generator().manual_seed(5)
    config = Qwen2Config(**SHAPE, attn_implementation="eager")
    trunk = Qwen2ForCausalLM(config).eval()
    module = Module(config).eval()
    random_weights(trunk, g)
    random_weights(module, g)
    table, head, rotary = trunk.model.embed_tokens, trunk.lm_head, trunk.model.rotary_emb
    out, total, count = {}, 0.0, 0
    for p in trunk.parameters():
        p.requires_grad_(False)
    for i, (n, n_prompt) in enumerate(zip(LENGTHS, PROMPTS)):
        token = torch.randint(3, SHAPE["vocab_size"], (1, n), generator=g)
        mask = (torch.rand(n - n_prompt, generator=g) < 0.8).int()
        hidden = trunk.model(token).last_hidden_state
        logits = head(module(table(token[:, 1:]), hidden[:, :-1], rotary))[0]
        full = torch.zeros(n)  # position p predicts token p + 1
        full[n_prompt - 1:n - 1] = mask.float()
        rolled = torch.cat([full[2:], torch.zeros(2)])[:n - 2]  # as Miles does: twice
        loss = F.cross_entropy(logits[:-1], token[0, 2:], reduction="none")
        total = total + (loss * rolled).sum()
        count += int(rolled.sum())
        out.update({f"tokens.{i}": token[0].int(), f"loss_mask.{i}": mask,
                    f"hidden.{i}": hidden[0], f"mtp_logits.{i}": logits.detach()})
    (0.2 * total / count).backward()
    out["prompt_len"] = torch.tensor(PROMPTS, dtype=torch.int32)
    out["miles.mtp_loss"] = (total / count).detach()[None]
    out["miles.num_tokens"] = torch.tensor([count], dtype=torch.int32)
    for name, p in module.named_parameters():
        out["miles.grad." + name_of(name)] = p.grad
    draft(out, trunk, module)
    save(config, trunk, module, out)


@torch.no_grad()
def draft(out, trunk, module):
    table, head, rotary = trunk.model.embed_tokens, trunk.lm_head, trunk.model.rotary_emb
    prefix = out["tokens.0"][:20].long()
    hidden = trunk.model(prefix[None]).last_hidden_state
    first = head(hidden)[0, -1].argmax()
    token = torch.cat([prefix, first[None]])
    tokens, logits = [], []
    for _ in range(3):
        y = module(table(token[None, 1:]), hidden, rotary)
        logits.append(head(y)[0, -1])
        tokens.append(logits[-1].argmax())
        token = torch.cat([token, tokens[-1][None]])
        hidden = torch.cat([hidden, y[:, -1:]], 1)
    out.update({"draft.prefix": prefix.int(), "draft.first": first[None].int(),
                "draft.tokens": torch.stack(tokens).int(), "draft.logits": torch.stack(logits)})


def save(config, trunk, module, out):
    os.makedirs(OUT, exist_ok=True)
    weights = {k: v.detach() for k, v in trunk.named_parameters()}
    weights |= {name_of(k): v.detach() for k, v in module.named_parameters()}
    save_file({k: v.contiguous() for k, v in weights.items()},
              os.path.join(OUT, "model.safetensors"), metadata={"format": "pt"})
    save_file({k: v.detach().contiguous() for k, v in out.items()},
              os.path.join(OUT, "golden.safetensors"))
    with open(os.path.join(OUT, "config.json"), "w") as f:
        json.dump(dict(SHAPE, model_type="mimo", architectures=["MiMoForCausalLM"],
                       head_dim=SHAPE["hidden_size"] // SHAPE["num_attention_heads"],
                       attention_bias=True, hidden_act="silu", num_nextn_predict_layers=1,
                       torch_dtype="float32"), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
