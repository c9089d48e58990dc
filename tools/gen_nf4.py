#!/usr/bin/env python3
"""NF4 codes and scales by bitsandbytes: tests/golden/quant/vectors/nf4.safetensors.

    tools/gen_nf4.py OUTPUT      needs torch, safetensors and bitsandbytes
"""
import sys

import bitsandbytes.functional
import torch
from safetensors.torch import save_file

torch.manual_seed(5)
x = torch.randn(24, 128) * 0.05
x[0, :64] = 0
x[1, 3] = 4.0
x[2] = torch.linspace(-1, 1, 128)
packed, state = bitsandbytes.functional.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=False)
values = bitsandbytes.functional.dequantize_4bit(packed, state)
packed = packed.flatten()  # the first of two elements is in the upper half of a byte
codes = torch.stack([packed >> 4, packed & 15], 1).reshape(x.shape)
save_file({"x": x, "codes": codes.contiguous(), "absmax": state.absmax.reshape(24, 2).contiguous(),
           "dq": values.contiguous()}, sys.argv[1])
