#!/usr/bin/env python3
"""Writes tests/golden/text/kimi/: a small tokenizer in the files of a Kimi checkpoint, and
what the Python package `tiktoken` makes of hard texts with it.

    tools/gen_tiktoken.py tests/golden/text/kimi
"""
import base64
import json
import random
import sys

import tiktoken
from gen_tokenizers import trained_models
from random_text import random_text

HAN = "&&[^\\p{Han}]"
UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" + HAN + "]"
LOWER = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" + HAN + "]"
TAIL = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    "[\\p{Han}]+", "[^\\r\\n\\p{L}\\p{N}]?" + UPPER + "*" + LOWER + "+" + TAIL,
    "[^\\r\\n\\p{L}\\p{N}]?" + UPPER + "+" + LOWER + "*" + TAIL, "\\p{N}{1,3}",
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", "\\s*[\\r\\n]+", "\\s+(?!\\S)", "\\s+"])


def byte_chars():
    """The byte that each character of a byte-level vocabulary stands for."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return {**{chr(b): b for b in own}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def main(folder):
    byte_of = byte_chars()
    vocab = trained_models()["bytes"]["vocab"]
    tokens = [bytes([b]) for b in range(256)]
    tokens += [bytes(byte_of[c] for c in t) for t in sorted(vocab, key=vocab.get) if len(t) > 1]
    n = len(tokens)
    names = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 5: "<think>"}
    special = {names.get(i, "<|reserved_token_%d|>" % i): i for i in range(n, n + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, special_tokens=special,
                                 mergeable_ranks={t: i for i, t in enumerate(tokens)})

    with open(folder + "/tiktoken.model", "w") as out:
        for i, t in enumerate(tokens):
            out.write("%s %d\n" % (base64.b64encode(t).decode(), i))
    with open(folder + "/tokenizer_config.json", "w") as out:
        rows = {str(i): {"content": c, "special": True} for i, c in names.items()}
        json.dump({"added_tokens_decoder": rows, "bos_token": "[BOS]", "eos_token": "[EOS]"}, out)
        out.write("\n")
    rng = random.Random(5)
    with open(folder + "/encode.jsonl", "w") as out:
        for _ in range(60):
            text = random_text(rng, list(special)[:8])[:120]
            ids = encoding.encode(text, allowed_special="all")
            row = {"text": text, "ids": ids, "decoded": encoding.decode(ids, errors="replace")}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


main(sys.argv[1])
