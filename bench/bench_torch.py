#!/usr/bin/env python3
"""A training step of bench_model's 48M-parameter llama shape in PyTorch, on the CPU.

    bench_torch.py [--threads N] [--turns N]

Forward, cross entropy at every position, backward and a fused AdamW step, in f32: plain
modules, PyTorch's own attention and RMSNorm, weights of embedding and head tied.  Prints
the best turn's milliseconds and tokens per second.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, HIDDEN, MLP, LAYERS = 32000, 512, 1536, 10
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 64
N_SEQ, SEQ_LEN = 4, 256


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.q = linear(HIDDEN, HEADS * HEAD_DIM)
        self.k = linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.v = linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o = linear(HEADS * HEAD_DIM, HIDDEN)
        self.gate, self.up = linear(HIDDEN, MLP), linear(HIDDEN, MLP)
        self.down = linear(MLP, HIDDEN)

    def attend(self, x, cos, sin):
        def heads(y):
            return y.view(*y.shape[:2], -1, HEAD_DIM).transpose(1, 2)

        q, k = rotate(heads(self.q(x)), cos, sin), rotate(heads(self.k(x)), cos, sin)
        y = F.scaled_dot_product_attention(q, k, heads(self.v(x)), is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        freq = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = torch.arange(SEQ_LEN)[:, None] * freq
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embed.weight)


def step(model, optimizer, ids, targets):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=False)
    F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(VOCAB, (N_SEQ, SEQ_LEN + 1))
    best = min(step(model, optimizer, ids[:, :-1], ids[:, 1:]) for _ in range(args.turns))
    n = N_SEQ * SEQ_LEN
    print(f"torch {torch.__version__}, {args.threads} threads: {best * 1e3:.1f} ms, {n / best:.0f} tokens/s")


if __name__ == "__main__":
    main()
