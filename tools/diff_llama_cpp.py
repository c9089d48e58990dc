#!/usr/bin/env python3
"""diff_llama_cpp.py --miles MILES - llama.cpp loads what `miles convert --save-gguf` writes.

For each family that a GGUF file can have, transformers makes a small model and tokenizers its
tokenizer.  llama.cpp must load the converted file, split texts into the tokens that miles gives for it,
have its chat template and continue prompts greedily with the tokens that are the most likely ones for
miles.  llama.cpp rounds activations to the type of a matrix, so that near ties of logits and of
routers may fall otherwise: SAME is the share of tokens that must be equal.  With the weights of the
q8_0 file as f32 all must be."""
import argparse
import json
import subprocess
import sys
import tempfile

try:
    import llama_cpp
except ImportError:
    print("skipped: llama.cpp: the Python package llama_cpp is missing; pip install llama-cpp-python brings it")
    sys.exit(0)
import numpy
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LENGTH = 48
SAME = {"f32": 1.0, "f16": 0.98, "bf16": 0.9, "q8_0": 0.85}
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
TEXTS = ["how many apples are there?", " two spaces  and 12345 digits", "tabs\tand\n\nlines\n", "it's Über-café №5 日本語 🙂",
         "", " ", "<|im_end|>", "a<|im_end|>\nb", "def f(x):\n    return x + 1\n"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CORPUS = ["how many apples are there in the tree? there are twelve apples, and it's late.",
          "def main(x):\n    return x + 1\n", "the café has 12345 seats; who's there? we'll see."] * 3
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, initializer_range=0.2, max_position_embeddings=512)


def run(*words, **how):
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, **how)
    if done.returncode:
        sys.exit("%s: %s" % (" ".join(words), done.stdout + done.stderr))
    return done.stdout


def byte_level(regex, bos):
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=bos))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not regex)
    split = pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") if regex else None
    t.pre_tokenizer = pre_tokenizers.Sequence([split, level]) if regex else level
    t.decoder = decoders.ByteLevel()
    specials = ["<|end|>", "<|im_start|>", "<|im_end|>"]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=specials, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        t.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    return t, {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>" if bos else None, "pad_token": "<|end|>"}


def pieces(prefix):
    """As sentencepiece makes them, with a token for each byte."""
    t = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    mark = [normalizers.Prepend("▁")] if prefix else []
    t.normalizer = normalizers.Sequence(mark + [normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
                                  + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    specials = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120, special_tokens=specials, show_progress=False))
    state = json.loads(t.to_str())
    vocab = state["model"]["vocab"]
    # sentencepiece joins any two pieces that make a piece, the earliest one first
    splits = [(v, k[:i], k[i:]) for k, v in vocab.items() for i in range(1, len(k)) if k not in specials]
    state["model"]["merges"] = [[l, r] for _, l, r in sorted(s for s in splits if s[1] in vocab and s[2] in vocab)]
    for b in range(256):
        vocab["<0x%02X>" % b] = len(vocab)
    t = tokenizers.Tokenizer.from_str(json.dumps(state))
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return t, {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}


def configurations():
    """Name, configuration, tokenizer."""
    qwen, llama3 = byte_level(QWEN, False), byte_level(LLAMA3, True)
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
    yield "llama", transformers.LlamaConfig(**SIZES, tie_word_embeddings=False), pieces(True)
    yield "llama3", transformers.LlamaConfig(**SIZES, rope_parameters=scaled, tie_word_embeddings=True), llama3
    yield "llama_bias", transformers.LlamaConfig(**SIZES, attention_bias=True), byte_level(None, False)
    yield "mistral", transformers.MistralConfig(**SIZES, sliding_window=None), pieces(True)
    yield "qwen2", transformers.Qwen2Config(**{**SIZES, "head_dim": 16}), qwen
    yield "qwen3", transformers.Qwen3Config(**SIZES, rope_parameters=yarn), qwen
    yield "qwen3_moe", transformers.Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                                                   moe_intermediate_size=32, decoder_sparse_step=1), qwen
    yield "gemma2", transformers.Gemma2Config(**SIZES, query_pre_attn_scalar=32, sliding_window=16), pieces(False)
    yield "gemma3", transformers.Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 7}, query_pre_attn_scalar=32,
                                                  sliding_window=16), pieces(False)


def make_model(folder, config, tokenizer):
    t, names = tokenizer
    torch.manual_seed(3)
    config.vocab_size = t.get_vocab_size() + 3  # rows without a token, as released models have
    for key in ("eos_token", "bos_token", "pad_token"):
        setattr(config, key + "_id", t.token_to_id(names[key]) if names.get(key) else None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # norms of 1 and biases of 0 would hide mistakes
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    t.save(folder + "/tokenizer.json")
    with open(folder + "/tokenizer_config.json", "w") as f:
        json.dump(dict(names, chat_template=TEMPLATE, tokenizer_class="PreTrainedTokenizerFast"), f)


def logits_of(miles, root, model, ids):
    save_file({"tokens.0": numpy.array(ids, numpy.int32)}, root + "/tokens.safetensors")
    run(miles, "score", "--hf-checkpoint", model, "--input", root + "/tokens.safetensors", "--output",
        root + "/logits.safetensors", "--logits", "--dtype", "f32")
    return load_file(root + "/logits.safetensors")["logits.0"]


def check_text(what, miles, model, llm):
    lines = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS)
    out = run(miles, "tokenize", "--hf-checkpoint", model, "--add-special-tokens", input=lines)
    for text, line in zip(TEXTS, out.splitlines()):
        got, want = json.loads(line)["ids"], llm.tokenize(text.encode(), add_bos=True, special=True)
        if got != want:
            sys.exit("%s: %r is %s for miles and %s for llama.cpp" % (what, text, got, want))
    if llm.metadata.get("tokenizer.chat_template") != TEMPLATE:
        sys.exit("%s: llama.cpp has no chat template, or another one" % what)


def greedy(llm, ids):
    llm.reset()
    out = list(ids)
    for token in llm.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
        out.append(int(token))
        if len(out) == len(ids) + LENGTH:
            return out


def check_greedy(what, miles, root, model, llm, bound):
    """The tokens of llama.cpp are those that are most likely for miles with `model`."""
    same = []
    for text in ("how many apples", "def f(x):"):
        ids = llm.tokenize(text.encode(), add_bos=True, special=True)
        out = greedy(llm, ids)
        best = logits_of(miles, root, model, out[:-1]).argmax(-1)
        same += [best[i] == out[i + 1] for i in range(len(ids) - 1, len(out) - 1)]
        line = json.dumps({"ids": out[len(ids):]})
        got = json.loads(run(miles, "tokenize", "--hf-checkpoint", model, "--decode", input=line))["text"]
        want = llm.detokenize(out[len(ids):], special=True).decode(errors="replace")
        if got != want and "\ufffd" not in want:  # of broken characters tokenizers replaces more bytes
            sys.exit("%s: tokens %s are %r for miles and %r for llama.cpp" % (what, out[len(ids):], got, want))
    print("%-24s %d of %d tokens are the same" % (what, sum(same), len(same)), flush=True)
    if sum(same) < bound * len(same):
        sys.exit("%s: llama.cpp continues prompts with other tokens" % what)


def load(model):
    return llama_cpp.Llama(model, n_ctx=256, n_threads=1, verbose=False, type_k=0, type_v=0, flash_attn=False, seed=1)


def check(miles, root, name, folder):
    for dtype, bound in SAME.items():
        what, model = "%s %s" % (name, dtype), "%s/%s-%s.gguf" % (root, name, dtype)
        run(miles, "convert", "--hf-checkpoint", folder, "--save-gguf", model, "--dtype", dtype)
        llm = load(model)
        check_text(what, miles, model, llm)
        check_greedy(what, miles, root, model, llm, bound)
        llm.close()
    wide = root + "/wide.gguf"
    run(miles, "convert", "--hf-checkpoint", model, "--save-gguf", wide, "--dtype", "f32")
    llm = load(wide)
    check_greedy(what + " as f32", miles, root, model, llm, 1.0)
    llm.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    p.add_argument("--only", default="")
    args = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as root:
        for name, config, tokenizer in configurations():
            if args.only not in name:
                continue
            make_model(root + "/" + name, config, tokenizer)
            check(args.miles, root, name, root + "/" + name)


if __name__ == "__main__":
    main()
