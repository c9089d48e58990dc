#!/usr/bin/env python3
"""Writes tests/golden/text/: small tokenizers of every kind, and what the Python package
`tokenizers` makes of hard texts with them.

models.json   a few trained models, by name
cases.jsonl   a line for each tokenizer: its name, model and other parts, and texts with ids,
              ids with special tokens, spans (in bytes) and decoded text

    tools/gen_tokenizers.py tests/golden/text
"""
import json
import random
import sys

from random_text import SPACES, WORDS, random_text
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

N_TEXTS = 10
REGEX_GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
REGEX_GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
               r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
               r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
REGEX_POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+"
                    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")


def corpus():
    rng = random.Random(7)
    return ["".join(rng.choice(WORDS) + rng.choice(SPACES[:9]) for _ in range(40))
            for _ in range(200)]


def train(tokenizer, size, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    return json.loads(tokenizer.to_str())["model"]


def trained_models():
    out = {}
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out["bytes"] = train(t, 700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    out["bytes_gaps"] = train(t, 300)  # without tokens for the bytes it never saw
    out["bytes_ignore"] = dict(out["bytes"], ignore_merges=True)
    # A token that no sequence of merges makes.
    out["bytes_ignore"]["vocab"] = dict(out["bytes"]["vocab"], **{"Ġwhole": 700, "whole": 701})
    out["bytes_strings"] = dict(out["bytes"], merges=[" ".join(m) for m in out["bytes"]["merges"]],
                                continuing_subword_prefix="", end_of_word_suffix="")

    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    chars = train(t, 500, special_tokens=["<unk>"], limit_alphabet=60)
    out["chars"] = chars
    out["chars_fused"] = dict(chars, fuse_unk=True)
    fallback = ["<0x%02X>" % i for i in range(256)]
    vocab = dict(chars["vocab"], **{f: 500 + i for i, f in enumerate(fallback)})
    out["fallback"] = dict(chars, vocab=vocab, byte_fallback=True, fuse_unk=True)
    some = {k: v for k, v in vocab.items() if not k.startswith("<0xE") and not k.startswith("<0xF")}
    some = {k: i for i, k in enumerate(some)}
    out["fallback_some"] = dict(chars, vocab=some, byte_fallback=True)

    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    out["suffix"] = train(t, 400, special_tokens=["<unk>"], end_of_word_suffix="</w>",
                          limit_alphabet=60)
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    out["prefix"] = train(t, 400, special_tokens=["<unk>"], continuing_subword_prefix="##",
                          limit_alphabet=60)
    return out


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim,
            "use_regex": regex}


def metaspace(**options):
    return dict({"type": "Metaspace", "replacement": "▁"}, **options)


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def added(content, **options):
    row = {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": True, "special": False}
    return dict(row, **options)


def template(*pieces, ids):
    single = [{"Sequence": {"id": "A", "type_id": 0}} if p == "$A" else
              {"SpecialToken": {"id": p, "type_id": 0}} for p in pieces]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {k: {"id": k, "ids": v, "tokens": [k] * len(v)}
                               for k, v in ids.items()}}


ADDED = [added("<s>", special=True, normalized=False), added("</s>", special=True, normalized=False),
         added("<s><s>", special=True, normalized=False),
         added("[L]", lstrip=True), added("[R]", rstrip=True, normalized=False),
         added("[LR]", lstrip=True, rstrip=True, special=True), added("word", single_word=True),
         added("Éa"), added("  ", normalized=False), added("\n\n\n"), added("naïve"),
         added("the"), added("ab", special=True), added("abc")]


# The package does not end when normalization leaves nothing of a token.
ADDED_INK = [t for t in ADDED if t["content"].strip()]


def cases():
    bl, bl_dec = byte_level(), byte_level(True)
    fallback_dec = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"},
                            {"type": "Fuse"})

    def case(name, model, pre=bl, dec=bl_dec, norm=None, post=None, tokens=()):
        rows = [dict(t, id=9000 + i) for i, t in enumerate(tokens)]
        return name, model, {"added_tokens": rows, "normalizer": norm, "pre_tokenizer": pre,
                             "post_processor": post, "decoder": dec}

    yield case("gpt2", "bytes")
    yield case("gpt2-prefix-space", "bytes", byte_level(True), post=byte_level(True))
    yield case("gpt2-trim", "bytes", post=byte_level(False))
    yield case("bytes-missing", "bytes_gaps")
    yield case("byte-level-whole", "bytes", byte_level(regex=False))
    yield case("ignore-merges", "bytes_ignore")
    yield case("string-merges", "bytes_strings")
    yield case("added", "bytes", tokens=ADDED, norm={"type": "Lowercase"})
    yield case("added-nfc", "bytes", tokens=ADDED, norm={"type": "NFC"})
    yield case("added-stripped", "bytes", tokens=ADDED_INK, norm=sequence(
        "normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}))
    for form in "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents":
        yield case(form.lower(), "bytes", norm={"type": form})
    yield case("accents", "bytes", norm=sequence("normalizers", {"type": "NFD"},
                                                 {"type": "StripAccents"}, {"type": "Lowercase"}))
    yield case("prepend-replace", "chars", None, fallback_dec, sequence(
        "normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")))
    yield case("replace-regex", "bytes", norm=sequence(
        "normalizers", replace(r"\s{2,}", "__", "Regex"), replace("a", ""), replace("é", "e'e")))
    for behavior in "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
        for invert in False, True:
            yield case("split-%s%s" % (behavior, "-inverted" if invert else ""), "bytes", sequence(
                "pretokenizers", split(r"\p{N}|[aeiou ]", behavior, invert),
                byte_level(regex=False)))
    yield case("split-string", "bytes", sequence(
        "pretokenizers", split(" ", "MergedWithPrevious", kind="String"), byte_level(regex=False)))
    yield case("split-empty-matches", "bytes", sequence(
        "pretokenizers", split("x*", "MergedWithNext"), byte_level(regex=False)))
    for name, pattern in (("gpt4", REGEX_GPT4), ("gpt4o", REGEX_GPT4O),
                          ("possessive", REGEX_POSSESSIVE),
                          ("classes", r"\d+|\w+|[^\w\s]+|[^\S\n]+|\n"),
                          ("escapes", r"[\t-\r\x41-\x{5A}\u0061-z]+|\.{2,}?|(?<=a)b(?=c)|[.\-\]^]|(é|ü){,2}-"),
                          ("scripts", r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+|\p{Lu}\p{Ll}*|\P{L}"),
                          ("folded", r"(?i:the|and|k|s)|(?i:[a-c]+)")):
        yield case("regex-" + name, "bytes", sequence(
            "pretokenizers", split(pattern, "Isolated"), byte_level(regex=False)))
    yield case("digits", "bytes", sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level(regex=False)))
    yield case("digits-individual", "bytes", sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": True}, bl))
    yield case("digits-prefix", "bytes", sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)))
    yield case("punctuation", "bytes", sequence(
        "pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(regex=False)))
    yield case("punctuation-removed", "chars", {"type": "Punctuation", "behavior": "Removed"}, None)
    yield case("whitespace", "chars_fused", {"type": "Whitespace"}, None)
    yield case("whitespace-split", "suffix", {"type": "WhitespaceSplit"}, None)
    yield case("continuing-prefix", "prefix", {"type": "Whitespace"}, None)
    for scheme in "always", "first", "never":
        options = metaspace(prepend_scheme=scheme, split=scheme != "never")
        yield case("metaspace-" + scheme, "fallback", options, options, tokens=ADDED)
    yield case("metaspace-old", "fallback", metaspace(add_prefix_space=True),
               metaspace(add_prefix_space=True))
    yield case("metaspace-stripped", "fallback", metaspace(prepend_scheme="first", split=True),
               metaspace(prepend_scheme="first", split=True), {"type": "Strip", "strip_left": True,
                                                               "strip_right": False},
               tokens=ADDED_INK)
    yield case("llama2", "fallback", None, sequence(
        "decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}), sequence(
            "normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        template("<s>", "$A", ids={"<s>": [0]}), ADDED)
    yield case("strip-tokens", "fallback", None, sequence(
        "decoders", {"type": "Strip", "content": "▁", "start": 2, "stop": 0}, fallback_dec),
        replace(" ", "▁"))
    yield case("fallback-some", "fallback_some", None, fallback_dec, replace(" ", "▁"))
    yield case("unknown", "chars", None, None, replace(" ", "▁"))
    yield case("unknown-fused", "chars_fused", None, None, replace(" ", "▁"))
    yield case("template", "bytes", post=sequence(
        "processors", byte_level(True, trim=False),
        template("a", "b", "$A", "c", ids={"a": [3], "b": [4, 5], "c": [6]})))
    # Keys that mean nothing to a component: converters leave them behind.
    stale = {"add_prefix_space": True, "trim_offsets": False, "use_regex": False}
    yield case("stale-template", "bytes", post=dict(
        template("a", "$A", ids={"a": [3]}), **stale))
    yield case("stale-cls", "bytes", post=dict(
        template("a", "$A", ids={"a": [3]}), cls=["a", 3], processors=[]))
    yield case("stale-everywhere", "bytes", dict(sequence(
        "pretokenizers", dict(split(r"\p{N}", "Isolated"), **stale),
        {"type": "Digits", "individual_digits": True, "invert": True, **stale},
        dict(byte_level(regex=False), behavior="Removed")), **stale),
        dict(bl_dec, cleanup=True, prefix="##"),
        {"type": "NFC", "strip_left": True, "lowercase": True},
        dict(sequence("processors", dict(byte_level(False), cls=["a", 3]), dict(
            template("a", "$A", ids={"a": [3]}), **stale)), **stale),
        [dict(added("<s>", special=True), comment="x")])


def spans_in_bytes(text, offsets):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [x for begin, end in offsets for x in (at[begin], at[end])]


def expected(tokenizer, text):
    plain = tokenizer.encode(text, add_special_tokens=False)
    special = tokenizer.encode(text, add_special_tokens=True)
    row = {"text": text, "ids": plain.ids, "spans": spans_in_bytes(text, plain.offsets),
           "decoded": tokenizer.decode(plain.ids, skip_special_tokens=False)}
    if special.ids != plain.ids:
        row["ids_special"] = special.ids
    skipped = tokenizer.decode(plain.ids, skip_special_tokens=True)
    if skipped != row["decoded"]:
        row["decoded_skip"] = skipped
    return row


def build(model, parts):
    return json.dumps(dict({"version": "1.0", "truncation": None, "padding": None}, **parts,
                           model=model), ensure_ascii=False)


def main(folder):
    trained = trained_models()
    with open(folder + "/models.json", "w") as out:
        json.dump(trained, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    with open(folder + "/cases.jsonl", "w") as out:
        for i, (name, model, parts) in enumerate(cases()):
            tokenizer = Tokenizer.from_str(build(trained[model], parts))
            rng = random.Random(i)
            special = [t["content"] for t in parts["added_tokens"]]
            texts = ["", " ", " a", "x  ", "the whole  whole"]
            texts += [random_text(rng, special)[:64] for _ in range(N_TEXTS)]
            row = {"name": name, "model": model, "parts": parts,
                   "texts": [expected(tokenizer, t) for t in texts]}
            if name == "bytes-missing":  # the package loses count of bytes it has no token for
                for t in row["texts"]:
                    del t["spans"]
            json.dump(row, out, ensure_ascii=False, separators=(",", ":"))
            out.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
