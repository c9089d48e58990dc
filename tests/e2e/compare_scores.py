#!/usr/bin/env python3
"""compare_scores.py ONE OTHER: two files of miles score have the same bytes in all tensors but
gradients, which differ by at most 1e-6 of the tensor's largest."""
import array
import json
import struct
import sys


def tensors(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        data = f.read()
    return {k: data[slice(*v["data_offsets"])] for k, v in head.items() if k != "__metadata__"}


def apart(a, b):
    x, y = array.array("f", a), array.array("f", b)
    most = max(map(abs, x))
    return max(abs(p - q) for p, q in zip(x, y)) / most if most else float(a != b)


one, other = tensors(sys.argv[1]), tensors(sys.argv[2])
wrong = ["names"] if one.keys() != other.keys() else []
for name in one.keys() & other.keys():
    grad = name.startswith("grad.")
    if apart(one[name], other[name]) > 1e-6 if grad else one[name] != other[name]:
        wrong.append(name)
print("differing:", *sorted(wrong)[:8]) if wrong else None
sys.exit(bool(wrong))
