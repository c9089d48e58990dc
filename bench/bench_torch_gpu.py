#!/usr/bin/env python3
"""PyTorch and transformers on the same GPU and model shape, as peers of bench/gpu.sh.

    bench_torch_gpu.py MODEL_DIR train     a training step, 8 x 2048 tokens, a loss at every position
    bench_torch_gpu.py MODEL_DIR stream    one stream of tokens, transformers with a static cache

Made-up weights.  Training: f32 weights under bf16 autocast, PyTorch's attention, fused AdamW, once as
it is and once with compiled layers; the faster one counts.  Prints lines of a name and a number.
"""

import sys
import time

import torch
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


def main():
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    {"train": train, "stream": stream}[sys.argv[2]](sys.argv[1])


if __name__ == "__main__":
    main()
