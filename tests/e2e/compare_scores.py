#!/usr/bin/env python3
"""compare_scores.py ONE OTHER [MOST]: two files of miles score have the same bytes in all tensors but
gradients, which differ by at most MOST (1e-6) of the tensor's largest."""
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
most = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-6
wrong = ["names"] if one.keys() != other.keys() else []
furthest = 0.0
for name in one.keys() & other.keys():
    if name.startswith("grad."):
        far = apart(one[name], other[name])
        furthest = max(furthest, far)
    else:
        far = float("inf") if one[name] != other[name] else 0.0
    if far > most:
        wrong.append(name)
print(f"gradients differ by {furthest:.2e} of their largest" if furthest else "gradients are equal")
print("differing:", *sorted(wrong)[:8]) if wrong else None
sys.exit(bool(wrong))
