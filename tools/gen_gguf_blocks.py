#!/usr/bin/env python3
"""Writes tests/golden/formats/gguf/blocks.safetensors: random blocks of each type that is read
from GGUF files, and their elements as gguf-py computes them.

    PYTHONPATH=llama.cpp/gguf-py python3 tools/gen_gguf_blocks.py
"""
import json
import struct
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
# Offsets of the 16-bit scales of a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
N = 8


def save(path, tensors):
    header, at = {}, 0
    for name, (dtype, a) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, a in tensors.values():
            f.write(a.tobytes())


def main():
    rng = np.random.default_rng(1)
    out = {}
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        _, size = GGML_QUANT_SIZES[kind]
        q = rng.integers(0, 256, (N, size), dtype=np.uint8)
        for at in SCALES[name]:
            scale = rng.normal(0, 0.1, N).astype(np.float16)
            q[:, at:at + 2] = scale.view(np.uint8).reshape(N, 2)
        out["q." + name] = ("U8", q)
        out["y." + name] = ("F32", np.ascontiguousarray(dequantize(q, kind).astype(np.float32)))
    save(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/formats/gguf/blocks.safetensors", out)


main()
