#!/usr/bin/env python3
"""Compares `miles tokenize` with the Python package `tokenizers` on random texts.

    tools/diff_tokenizer.py [--miles PATH] [--texts N] [--seed N] [DIR...]

DIR holds a tokenizer.json; without one, the fixtures beside the checkout, the small
tokenizers of tests/golden/text and those that `miles convert` writes from GGUF files are used.  Ids without and with special tokens, the text of
those ids and the text of random ids must be equal.
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from random_text import random_text
from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FIXTURES = os.path.join(ROOT, "../shared/fixtures/tokenizers")
OURS = os.path.join(ROOT, "tests/golden/text")


def miles(program, folder, flags, rows):
    text = "".join(json.dumps(r) + "\n" for r in rows)
    out = subprocess.run([program, "tokenize", "--hf-checkpoint", folder, *flags], input=text,
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit("%s: %s" % (folder, out.stderr))
    return [next(iter(json.loads(line).values())) for line in out.stdout.split("\n") if line]


def expected(f, x):
    """What the package says, or None where it crashes."""
    try:
        return f(x)
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        return None


def compare(name, what, inputs, got, want):
    bad = [i for i in range(len(inputs)) if want[i] is not None and got[i] != want[i]]
    for i in bad[:3]:
        print("%s: %s of %s\n    ours  %s\n    theirs %s" % (name, what, ascii(inputs[i])[:300],
                                                            ascii(got[i])[:300],
                                                            ascii(want[i])[:300]))
    return len(bad)


def check(args, name, folder):
    tok = Tokenizer.from_file(folder + "/tokenizer.json")
    rng = random.Random(args.seed)
    special = [t.content for t in tok.get_added_tokens_decoder().values()][:300]
    texts = [random_text(rng, special) for _ in range(args.texts)]
    rows = [{"text": t} for t in texts]
    bad = 0
    for flags, add in ([], False), (["--add-special-tokens"], True):
        want = [expected(lambda x: tok.encode(x, add_special_tokens=add).ids, t) for t in texts]
        bad += compare(name, "ids", texts, miles(args.miles, folder, flags, rows), want)
    size = tok.get_vocab_size() + 3
    ids = [i or [] for i in want]
    ids += [[rng.randrange(size) for _ in range(rng.randint(0, 30))] for _ in range(args.texts // 2)]
    rows = [{"ids": i} for i in ids]
    for flags, skip in ([], False), (["--skip-special-tokens"], True):
        want = [expected(lambda x: tok.decode(x, skip_special_tokens=skip), i) for i in ids]
        bad += compare(name, "text", ids, miles(args.miles, folder, ["--decode", *flags], rows), want)
    print("%-24s %d texts, %d differences" % (name, len(texts), bad), flush=True)
    return bad


def fixtures(scratch):
    if not os.path.isdir(FIXTURES):
        print(f"skipped: {FIXTURES} is missing: only the tokenizers of tests/golden/text are compared")
        return
    for name in sorted(os.listdir(FIXTURES)):
        folder = os.path.join(scratch, name)
        os.makedirs(folder)
        with gzip.open(os.path.join(FIXTURES, name, "tokenizer.json.gz")) as f:
            open(folder + "/tokenizer.json", "wb").write(f.read())
        yield name, folder


def small_ones(scratch):
    models = json.load(open(OURS + "/models.json"))
    for line in open(OURS + "/cases.jsonl"):
        row = json.loads(line)
        folder = os.path.join(scratch, "small-" + row["name"])
        os.makedirs(folder)
        with open(folder + "/tokenizer.json", "w") as f:
            json.dump(dict(row["parts"], version="1.0", truncation=None, padding=None,
                           model=models[row["model"]]), f)
        yield row["name"], folder


def gguf_ones(program, scratch):
    """The tokenizers of GGUF files, as exported; the same file with another way to split words."""
    for name, pre in [("gemma3-q4_0", None), ("qwen3-q8_0", None), ("llama_k-q4_K_M", None),
                      ("llama_k-q4_K_M", (b"llama-bpe", b"starcoder"))]:
        model = os.path.join(scratch, "model.gguf")
        folder = os.path.join(scratch, "gguf-%s%s" % (name, "-starcoder" if pre else ""))
        data = open(os.path.join(ROOT, "tests/golden/formats/gguf", name + ".gguf"), "rb").read()
        open(model, "wb").write(data.replace(*pre) if pre else data)
        subprocess.run([program, "convert", "--hf-checkpoint", model, "--save-hf", folder], check=True)
        yield os.path.basename(folder), folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--miles", default=os.path.join(ROOT, "miles"))
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folder", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        given = [(os.path.basename(f.rstrip("/")), f) for f in args.folder]
        todo = given or [*fixtures(scratch), *small_ones(scratch), *gguf_ones(args.miles, scratch)]
        bad = sum(check(args, name, folder) for name, folder in todo)
    sys.exit(1 if bad else 0)


main()
