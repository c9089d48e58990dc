#!/usr/bin/env python3
"""Tokenizers against the Python package `tokenizers`, one thread each, in one run.

    make build/release/bench/bench_tokenize
    bench/bench_tokenize.py [--program PATH] DIR...

DIR holds a tokenizer.json.  Texts are GSM8K questions and answers, from the fixtures beside
the checkout when they are there, and a mix of languages made here.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.dont_write_bytecode = True
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))

from random_text import WORDS  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

GSM8K = os.path.join(ROOT, "../shared/fixtures/data/gsm8k/train.jsonl")
LANGUAGES = """
All human beings are born free and equal in dignity and rights.
Tous les êtres humains naissent libres et égaux en dignité et en droits.
Alle Menschen sind frei und gleich an Würde und Rechten geboren.
Все люди рождаются свободными и равными в своем достоинстве и правах.
人人生而自由,在尊严和权利上一律平等。
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.
for (int i = 0; i < n; i++) { sum += a[i] * b[i]; } // 3.14159 🙂🚀
""".strip().split("\n")


def gsm8k(limit):
    rows = [json.loads(line) for line in open(GSM8K)][:limit]
    return [v for row in rows for v in row.values() if isinstance(v, str) and len(v) > 20]


def multilingual(n):
    rng = random.Random(1)
    return ["\n".join(" ".join([rng.choice(LANGUAGES), *rng.choices(WORDS, k=6)])
                      for _ in range(8)) for _ in range(n)]


def best(f, rounds=3):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = f()
        times.append(time.perf_counter() - start)
    return min(times), result


def peer(folder, texts):
    load, tok = best(lambda: Tokenizer.from_file(folder + "/tokenizer.json"))
    mb = sum(len(t.encode()) for t in texts) / 1e6
    encode, out = best(lambda: tok.encode_batch_fast(texts, add_special_tokens=False))
    ids = [e.ids for e in out]
    decode, _ = best(lambda: tok.decode_batch(ids, skip_special_tokens=False))
    return {"load_ms": load * 1e3, "encode": mb / encode, "decode": mb / decode}


def ours(program, folder, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
        f.flush()
        out = subprocess.run([program, folder, f.name], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/release/bench/bench_tokenize")
    parser.add_argument("folder", nargs="+")
    args = parser.parse_args()
    sets = {"multilingual": multilingual(800)}
    if os.path.exists(GSM8K):
        sets["gsm8k"] = gsm8k(3000)
    else:
        print("skipped: no GSM8K beside the checkout")
    for folder in args.folder:
        for name, texts in sets.items():
            a, b = ours(args.program, folder, texts), peer(folder, texts)
            print("%-12s %-12s load %7.1f ms, %.2f of the peer's; encode %6.2f MB/s, %5.2f times; "
                  "decode %6.2f MB/s, %5.2f times" % (
                      os.path.basename(folder), name, a["load_ms"], a["load_ms"] / b["load_ms"],
                      a["encode"], a["encode"] / b["encode"], a["decode"], a["decode"] / b["decode"]))


main()
