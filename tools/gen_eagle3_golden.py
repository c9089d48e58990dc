#!/usr/bin/env python3
"""Writes tests/golden/eagle3: a tiny Llama model, EAGLE-3 heads for it in the format of the released
heads, and what torch computes with them, in float32.

target/   the model, as transformers saves it; golden.safetensors has the sequences of own/
own/      a head with another width and an embedding of its own, trained on answers of the model
shared/   a head with the model's embedding and random weights, which names the layers that it reads

golden.safetensors of a head has

tokens.N         sequences
draft_logits.N   row p: the head's logits after the hidden states of p and token p + 1
loss, grad.NAME  the mean cross entropy of tokens p + 2 that are in the draft vocabulary, and its gradients
draft.prefix, draft.first, draft.tokens, draft.logits
                 a prompt, the token that follows greedily, the head's greedy drafts after it
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, DRAFT, TARGET, LAYERS = 128, 50, 32, 6
HEADS, KV_HEADS, HEAD_DIM, INNER, EPS, THETA = 4, 2, 16, 72, 1e-5, 10000.0
N_DRAFT = 3


def target_model():
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=TARGET, intermediate_size=48, num_hidden_layers=LAYERS,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
                         rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).float().eval()
    for name, p in model.named_parameters():
        scale = 0.7 if "lm_head" in name or "embed" in name else 0.1
        p.data.normal_(0, scale).add_(0 if p.dim() > 1 else 1)
    return model


def head_weights(hidden):
    shapes = {
        "fc.weight": (hidden, 3 * TARGET),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": (INNER, hidden),
        "midlayer.mlp.up_proj.weight": (INNER, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, INNER),
        "norm.weight": (hidden,),
        "lm_head.weight": (DRAFT, hidden),
    }
    w = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            w[name] = torch.randn(shape) * 0.3
        else:
            w[name] = 1 + 0.1 * torch.randn(shape)
    return w


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x, n):
    """Rotary embedding of [..., n, heads, dim] at positions 0 .. n - 1."""
    half = HEAD_DIM // 2
    freq = THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(n, dtype=torch.float32)[:, None] * freq
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def run_head(w, embedding, hidden, tokens):
    """Hidden states with the tokens after them: logits and the next hidden states."""
    n = tokens.shape[-1]
    x = torch.cat([norm(embedding[tokens], w["midlayer.input_layernorm.weight"]),
                   norm(hidden, w["midlayer.hidden_norm.weight"])], -1)
    q, k, v = ((x @ w[f"midlayer.self_attn.{i}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM)) for i in "qkv")
    q, k = rotate(q, n), rotate(k, n)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, -2) for t in (k, v))
    score = torch.einsum("...qhd,...khd->...hqk", q, k) / HEAD_DIM**0.5
    score = score.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    o = torch.einsum("...hqk,...khd->...qhd", score.softmax(-1), v).flatten(-2)
    y = hidden + o @ w["midlayer.self_attn.o_proj.weight"].T
    z = norm(y, w["midlayer.post_attention_layernorm.weight"])
    mlp = F.silu(z @ w["midlayer.mlp.gate_proj.weight"].T) * (z @ w["midlayer.mlp.up_proj.weight"].T)
    y = y + mlp @ w["midlayer.mlp.down_proj.weight"].T
    return norm(y, w["norm.weight"]) @ w["lm_head.weight"].T, y


def aux_states(model, layers, tokens):
    """The inputs of these layers, side by side, and the model's logits."""
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True)
    return torch.cat([out.hidden_states[i][0] for i in layers], -1), out.logits[0]


def drafts(model, layers, w, embedding, d2t, prefix):
    aux, logits = aux_states(model, layers, prefix)
    first = int(logits[-1].argmax())
    tokens, hidden = prefix[1:] + [first], aux @ w["fc.weight"].T
    out, rows = [], []
    for _ in range(N_DRAFT):
        logits, y = run_head(w, embedding, hidden, torch.tensor(tokens))
        best = int(logits[-1].argmax())
        rows.append(logits[-1])
        out.append(best + int(d2t[best]))
        tokens, hidden = tokens + [out[-1]], torch.cat([hidden, y[-1:]])
    return first, out, torch.stack(rows)


def head_config(hidden, outputs_of):
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden,
              "target_hidden_size": TARGET, "intermediate_size": INNER, "num_hidden_layers": 1,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
              "hidden_act": "silu", "rms_norm_eps": EPS, "rope_theta": THETA, "vocab_size": VOCAB,
              "draft_vocab_size": DRAFT, "max_position_embeddings": 512, "tie_word_embeddings": False,
              "attention_bias": False, "torch_dtype": "float32"}
    if outputs_of:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": outputs_of, "use_aux_hidden_state": True}
    return config


def losses(model, layers, w, embedding, to_draft, golden):
    loss, count = 0.0, 0
    for x in w.values():
        x.requires_grad_(True)
    for i, n in enumerate((29, 17, 40)):
        tokens = torch.randint(3, VOCAB, (n,)).tolist()
        aux, _ = aux_states(model, layers, tokens)
        logits, _ = run_head(w, embedding, (aux @ w["fc.weight"].T)[:-1], torch.tensor(tokens[1:]))
        golden[f"tokens.{i}"] = torch.tensor(tokens, dtype=torch.int32)
        golden[f"draft_logits.{i}"] = logits.detach()
        for p in range(n - 2):
            if tokens[p + 2] in to_draft:
                loss = loss - logits[p].log_softmax(-1)[to_draft[tokens[p + 2]]]
                count += 1
    loss = loss / count
    loss.backward()
    golden["loss"] = loss.detach().reshape(1)
    for name, x in w.items():
        golden["grad." + name] = x.grad
        x.requires_grad_(False)


def answers(model, n, length):
    tokens = torch.randint(3, VOCAB, (n, 17))
    with torch.no_grad():
        while tokens.shape[1] < length:
            probs = (model(tokens).logits[:, -1] / torch.linspace(0.3, 1, n)[:, None]).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(probs, 1)], 1)
    return tokens


def train(model, layers, w, embedding, chosen, tokens):
    with torch.no_grad():
        out = model(tokens, output_hidden_states=True)
    aux = torch.cat([out.hidden_states[i] for i in layers], -1)
    want = out.logits[..., chosen].softmax(-1)
    for x in w.values():
        x.requires_grad_(True)
    optimizer = torch.optim.Adam(w.values(), lr=3e-3)
    for _ in range(300):
        some = torch.randint(0, len(tokens), (32,))
        logits, _ = run_head(w, embedding, (aux[some] @ w["fc.weight"].T)[:, :-1], tokens[some, 1:])
        loss = -(want[some, 1:] * logits.log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for x in w.values():
        x.requires_grad_(False)
        x.grad = None


def write_head(folder, model, hidden, outputs_of, trained):
    layers = [i + 1 for i in outputs_of] if outputs_of else [2, LAYERS // 2, LAYERS - 3]
    w = head_weights(hidden)
    own = None if hidden == TARGET else torch.randn(VOCAB, hidden) * 0.3
    embedding = model.model.embed_tokens.weight.data if own is None else own
    tokens = answers(model, 256, 56)
    chosen = torch.bincount(tokens[:, 17:].flatten(), minlength=VOCAB).topk(DRAFT).indices.sort().values
    d2t = chosen - torch.arange(DRAFT)
    if trained:
        train(model, layers, w, embedding, chosen, tokens)
    golden = {}
    losses(model, layers, w, embedding, {int(t): i for i, t in enumerate(chosen)}, golden)
    prefix = golden["tokens.0"].tolist()[:21]
    first, ids, rows = drafts(model, layers, w, embedding, d2t, prefix)
    golden["draft.prefix"] = torch.tensor(prefix, dtype=torch.int32)
    golden["draft.first"] = torch.tensor([first], dtype=torch.int32)
    golden["draft.tokens"] = torch.tensor(ids, dtype=torch.int32)
    golden["draft.logits"] = rows

    head = {k: v.contiguous() for k, v in w.items()}
    if own is not None:
        head["embed_tokens.weight"] = own
    head["d2t"] = d2t
    head["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, True)
    os.makedirs(folder, exist_ok=True)
    save_file(head, folder + "/model.safetensors")
    save_file({k: v.contiguous() for k, v in golden.items()}, folder + "/golden.safetensors")
    with open(folder + "/config.json", "w", encoding="utf-8") as f:
        json.dump(head_config(hidden, outputs_of), f, indent=1)
        f.write("\n")
    return {k: v for k, v in golden.items() if k.startswith("tokens.")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="tests/golden/eagle3")
    out = parser.parse_args().output
    torch.manual_seed(3)
    model = target_model()
    model.save_pretrained(out + "/target")
    os.remove(out + "/target/generation_config.json")
    save_file(write_head(out + "/own", model, 48, None, True), out + "/target/golden.safetensors")
    write_head(out + "/shared", model, TARGET, [0, 2, 4], False)


if __name__ == "__main__":
    main()
