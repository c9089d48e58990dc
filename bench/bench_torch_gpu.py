#!/usr/bin/env python3
"""PyTorch and transformers on the same GPU and model shape, as peers of bench/gpu.sh.

    bench_torch_gpu.py MODEL_DIR train     a training step, 8 x 2048 tokens, a loss at every position
    bench_torch_gpu.py MODEL_DIR stream    one stream of tokens, transformers with a static cache
    bench_torch_gpu.py - attention         SDPA with cuDNN and flash, the shapes of bench_attn's head128

Made-up weights.  Training: f32 weights under bf16 autocast, PyTorch's attention, fused AdamW, once as
it is and once with compiled layers; the faster one counts.  Prints lines of a name and a number.
"""

import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

N_SEQ, SEQ_LEN, STEPS = 8, 2048, 5
N_PROMPT, N_NEW = 64, 256


def made_up(model_dir, dtype):
    config = AutoConfig.from_pretrained(model_dir)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def step_seconds(model, optimizer, ids):
    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    step()
    return sorted(timed(step) for _ in range(STEPS))[STEPS // 2]


def train(model_dir):
    model = made_up(model_dir, torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(model.config.vocab_size, (N_SEQ, SEQ_LEN), device="cuda")
    eager = step_seconds(model, optimizer, ids)
    print(f"torch_eager_tokens_per_s {N_SEQ * SEQ_LEN / eager:.0f}", flush=True)
    for layer in model.model.layers:
        layer.compile()
    compiled = step_seconds(model, optimizer, ids)
    print(f"torch_compiled_tokens_per_s {N_SEQ * SEQ_LEN / compiled:.0f}")
    print(f"torch_tokens_per_s {N_SEQ * SEQ_LEN / min(eager, compiled):.0f}")


def stream(model_dir):
    model = made_up(model_dir, torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    ids = torch.randint(model.config.vocab_size, (1, N_PROMPT), device="cuda")

    def generate():
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True,
                       temperature=1.0, top_k=0, top_p=1.0, min_new_tokens=N_NEW, max_new_tokens=N_NEW,
                       cache_implementation="static", pad_token_id=0)

    generate()
    generate()
    print(f"transformers_tokens_per_s {N_NEW / timed(generate):.0f}")


ATTENTION = ("4k", 4, 4096, 16, 8, 128), ("16k", 1, 16384, 16, 8, 128), ("32k", 1, 32768, 16, 8, 128), (
    "64-1k", 32, 1024, 9, 3, 64)


def fastest_ms(work):
    best = float("inf")
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


def attention(_):
    """TFLOP/s of causal pairs; backward counts five products, as bench_attn does."""
    for name, n_seq, length, heads, kv, size in ATTENTION:
        q, k, v = (torch.randn(n_seq, h, length, size, device="cuda", dtype=torch.bfloat16,
                               requires_grad=True) for h in (heads, kv, kv))
        flop = 4 * n_seq * length * (length + 1) / 2 * heads * size
        for backend in SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION:
            with sdpa_kernel(backend):
                def forward(q=q, k=k, v=v):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=True)

                out = forward()
                dout = torch.randn_like(out)
                ms = fastest_ms(forward)
                back = fastest_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
            library = backend.name.split("_")[0].lower()
            print(f"{library}_{name}_forward {flop / ms / 1e9:.1f}")
            print(f"{library}_{name}_backward {2.5 * flop / back / 1e9:.1f}", flush=True)


def main():
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    {"train": train, "stream": stream, "attention": attention}[sys.argv[2]](sys.argv[1])


if __name__ == "__main__":
    main()
