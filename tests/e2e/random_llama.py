"""A checkpoint of the Llama family with random bf16 weights, for runs that measure memory or time."""
import dataclasses
import json
import random
import struct

from serve_setup import write_tokenizer


@dataclasses.dataclass
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int


def tensors(s):
    yield "model.embed_tokens.weight", [s.vocab, s.hidden]
    yield "model.norm.weight", [s.hidden]
    for i in range(s.layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [s.hidden]
        yield at + "post_attention_layernorm.weight", [s.hidden]
        for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            yield f"{at}self_attn.{name}_proj.weight", [heads * s.head_dim, s.hidden]
        yield at + "self_attn.o_proj.weight", [s.hidden, s.heads * s.head_dim]
        yield at + "mlp.gate_proj.weight", [s.inner, s.hidden]
        yield at + "mlp.up_proj.weight", [s.inner, s.hidden]
        yield at + "mlp.down_proj.weight", [s.hidden, s.inner]


def write_model(path, shape):
    """The weights are one block of random numbers, repeated."""
    draw = random.Random(1)
    block = b"".join(struct.pack("<f", draw.gauss(0, 0.03))[2:] for _ in range(99991))
    ones = struct.pack("<f", 1.0)[2:]
    header, begin = {}, 0
    for name, size in tensors(shape):
        n = 2 * size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, begin + n]}
        begin += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, size in tensors(shape):
            n = 2 * size[0] * (size[1] if len(size) > 1 else 1)
            source = ones if len(size) == 1 else block
            f.write((source * (n // len(source) + 1))[:n])
    with open(path + "/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
                   "hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
                   "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
                   "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
                   "max_position_embeddings": 8192, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
                   "eos_token_id": 2}, f)
    write_tokenizer(path)
