#!/usr/bin/env python3
"""Models on a GPU against transformers, and against themselves in another batching.

    tests/gpu/check_models.py --miles build/release/miles [--only FAMILY]...

f32: the committed goldens within 1e-4.  bf16: an error of at most 1.5 times that of transformers in
bf16, measured against f32 in the same run, on goldens and on models with heads of real sizes.  And
the law: log-probs of a packed batch, of sequences alone and of one token at a time are equal bits.
A family that needs an op without a CUDA kernel is skipped, with the backend's reason.
"""
import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GOLDEN = "tests/golden/data"
count = {True: 0, False: 0}
skipped = 0


def check(ok, what):
    count[bool(ok)] += 1
    print(("ok   " if ok else "FAIL ") + what, flush=True)


def skip(what, why):
    global skipped
    skipped += 1
    print(f"skipped: {what}: {why}", flush=True)


def score(miles, model, tokens, *more):
    out = tempfile.mktemp(suffix=".safetensors")
    cmd = [miles, "score", "--device", "cuda", "--hf-checkpoint", model, "--input", tokens, "--output",
           out, *more]
    done = subprocess.run(cmd, capture_output=True, text=True)
    if "has no kernel for" in done.stderr or "has no forward of op" in done.stderr:
        skip(os.path.basename(model), done.stderr.strip().splitlines()[-1])
        return None
    if done.returncode:
        check(False, " ".join(cmd) + ": " + done.stderr.strip())
        return None
    result = load_file(out)
    os.remove(out)
    return result


def relative(got, want):
    want = want.double()
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


def together(result, names):
    return torch.cat([result[n].flatten() for n in names])


def peer_logits(model, tokens, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    # Its grouped products do not take widths as small as those of the goldens.
    net = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager",
                                               experts_implementation="eager").cuda()
    out = {}
    with torch.no_grad():
        for name in sorted(n for n in tokens if n.startswith("tokens.")):
            ids = tokens[name].long().cuda()[None]
            out["logits." + name[7:]] = net(ids).logits[0].float().cpu().numpy()
    return out


worker = None


def in_worker(function, *args):
    """What the function returns, and why not.  A failed kernel ends the CUDA context of its process,
    and with it every later call: after a failure the next call has a new process."""
    global worker
    worker = worker or ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return worker.submit(function, *args).result(), None
    except Exception as e:
        worker.shutdown()
        worker = None
        return None, (str(e).strip().splitlines() or [repr(e)])[0][:100]


def golden(miles, family):
    model = f"{GOLDEN}/{family}"
    want = load_file(f"{model}/golden.safetensors")
    got = score(miles, model, f"{model}/golden.safetensors", "--logits", "--grads", "--dtype", "f32")
    if got is None:
        return
    names = sorted(n for n in want if n.startswith("logits.") and n in got)
    check(relative(together(got, names), together(want, names)) < 1e-4, f"{family} f32 logits")
    grads = sorted(n for n in want if n.startswith("grad."))
    all_norm = together(want, grads).double().norm()
    worst = max(float((got[n].double() - want[n].double()).norm()
                      / (want[n].double().norm() + 1e-3 * all_norm)) for n in grads)
    check(worst < 1e-4, f"{family} f32 gradients, worst {worst:.1e}")
    against_peer(miles, family, model, want, f"{model}/golden.safetensors")
    parity(miles, family, model, f"{model}/golden.safetensors")


def against_peer(miles, name, model, tokens, path):
    got = score(miles, model, path, "--logits", "--grads", "--dtype", "bf16")
    if got is None:
        return
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        logits, why = in_worker(peer_logits, model, tokens, dtype)
        if why:  # e.g. a release of transformers without the family
            skip(f"{name} bf16", f"transformers in {dtype}: {why}")
            return
        results.append({n: torch.from_numpy(x) for n, x in logits.items()})
    exact, peer = results
    names = sorted(exact)
    ours = relative(together(got, names), together(exact, names))
    theirs = relative(together(peer, names), together(exact, names))
    check(ours <= 1.5 * theirs, f"{name} bf16 logits: {ours:.2e}, transformers {theirs:.2e}")


def make_model(folder, family, **sizes):
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, vocab_size=1003, hidden_size=256, intermediate_size=640,
                                  num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
                                  tie_word_embeddings=False, initializer_range=0.05, **sizes)
    net = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):  # zero until now
            torch.nn.init.normal_(parameter, std=0.5)
    net.save_pretrained(folder)
    lengths = [1, 17, 64, 65, 130, 300, 5]
    tokens = {f"tokens.{i}": torch.randint(0, 1003, (n,), dtype=torch.int32)
              for i, n in enumerate(lengths)}
    save_file(tokens, f"{folder}/tokens.safetensors")
    return tokens


def make_adapters(folder, tokens):
    """Two adapters of different rank on all linear layers, and sequences with either or none."""
    weights = {n[:-len(".weight")]: w for n, w in load_file(f"{folder}/model.safetensors").items()
               if n.endswith("_proj.weight")}
    for name, rank in (("small", 8), ("large", 36)):
        os.mkdir(f"{folder}/{name}")
        with open(f"{folder}/{name}/adapter_config.json", "w") as f:
            json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank,
                       "target_modules": sorted({n.split(".")[-1] for n in weights})}, f)
        tensors = {}
        for n, w in weights.items():
            tensors[f"base_model.model.{n}.lora_A.weight"] = torch.randn(rank, w.shape[1]) * 0.05
            tensors[f"base_model.model.{n}.lora_B.weight"] = torch.randn(w.shape[0], rank) * 0.05
        save_file(tensors, f"{folder}/{name}/adapter_model.safetensors")
    chosen = {f"adapter.{i}": torch.tensor(i % 3 - 1, dtype=torch.int32)
              for i in range(len(tokens))}
    save_file({**tokens, **chosen}, f"{folder}/adapted.safetensors")
    return ["--lora-paths", f"small={folder}/small", f"large={folder}/large"]


def parity(miles, name, model, path, *more):
    ways = {w: score(miles, model, path, "--entropy", "--batching", w, *more)
            for w in ("packed", "single", "tokenwise")}
    if any(v is None for v in ways.values()):
        return
    names = [n for n in sorted(ways["packed"]) if ways["packed"][n].numel()]
    for other in ("single", "tokenwise"):
        same = all(torch.equal(ways["packed"][n].view(torch.int32), ways[other][n].view(torch.int32))
                   for n in names)
        check(same, f"{name}: packed and {other} are equal bits")


def gradients(miles, name, folder, tokens):
    got = score(miles, folder, f"{folder}/tokens.safetensors", "--grads")
    if got is None:
        return
    want = {}
    for dtype in (torch.float32, torch.bfloat16):
        net = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype,
                                                   attn_implementation="eager").cuda()
        total = sum(t.numel() - 1 for t in tokens.values())
        for t in tokens.values():
            ids = t.long().cuda()[None]
            if ids.shape[1] < 2:
                continue
            logp = torch.log_softmax(net(ids).logits[0, :-1].float(), -1)
            (-logp.gather(1, ids[0, 1:, None]).sum() / total).backward()
        want[dtype] = {n: p.grad.float().cpu() for n, p in net.named_parameters()}
    names = sorted(want[torch.float32])
    exact = together(want[torch.float32], names)
    ours = relative(torch.cat([got["grad." + n].flatten() for n in names]), exact)
    theirs = relative(together(want[torch.bfloat16], names), exact)
    check(ours <= 1.5 * theirs, f"{name} bf16 gradients: {ours:.2e}, transformers {theirs:.2e}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--miles", default="build/release/miles")
    ap.add_argument("--only", action="append")
    args = ap.parse_args()
    miles = args.miles
    torch.backends.cuda.matmul.allow_tf32 = False
    for family in args.only or sorted(os.listdir(GOLDEN)):
        if os.path.exists(f"{GOLDEN}/{family}/golden.safetensors"):
            golden(miles, family)
    for family, head_dim in (("qwen3", 64), ("qwen3", 128), ("qwen2", 32)):
        if args.only:
            break
        name = f"{family} with heads of {head_dim}"
        with tempfile.TemporaryDirectory() as folder:
            tokens = make_model(folder, family, head_dim=head_dim)
            path = f"{folder}/tokens.safetensors"
            against_peer(miles, name, folder, tokens, path)
            gradients(miles, name, folder, tokens)
            parity(miles, name, folder, path)
            parity(miles, f"{name} and adapters", folder, f"{folder}/adapted.safetensors",
                   *make_adapters(folder, tokens))
    print(json.dumps({"passed": count[True], "failed": count[False], "skipped": skipped}))
    print(f"{count[True]} passed, {count[False]} failed, {skipped} skipped")
    sys.exit(count[False] > 0)


if __name__ == "__main__":
    main()
