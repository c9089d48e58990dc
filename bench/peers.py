#!/usr/bin/env python3
"""peers.py --build BUILD --model DIR [...] - one table: this project beside llama.cpp, PyTorch and TRL on a CPU.

    --model DIR      SmolLM2-135M as a Hugging Face checkpoint (docs/RESULTS.md says where it comes from)
    --llama PYTHON   a python3 that has the package llama-cpp-python; without it llama.cpp is left out
    --torch PYTHON   a python3 that has torch; without it PyTorch is left out
    --trl PYTHON     a python3 that has trl and datasets, with --data DIR of prepare_data.py arithmetic
    --turns N        everything takes turns, and the best of each counts

Two threads.  Generation is that of bench_engine: a prompt of 512 tokens, one stream at 256 tokens and more,
16 streams at 32 tokens and more; bench_quant with int4 and int8 has contexts of 64 tokens.  The GRPO round is 8 prompts x 8 answers of 4 tokens.  A goal that is missed
says MISS, and the program ends with 1.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# Runs in the Python of --llama: tokens/s of llama.cpp, as JSON.
LLAMA = r"""
import ctypes, json, sys, time
import llama_cpp as ll

PREFILL, LONG, SHORT, DECODE, MANY = 512, 256, 32, 24, 16
quiet = ll.llama_log_callback(lambda level, text, data: None)
ll.llama_log_set(quiet, ctypes.c_void_p(0))
ll.llama_backend_init()
weights = ll.llama_model_default_params()
weights.use_extra_bufts = sys.argv[3] == "repacked"
model = ll.llama_model_load_from_file(sys.argv[1].encode(), weights)
params = ll.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 16 * 1024, 512, 512, MANY
params.n_threads = params.n_threads_batch = 2
if sys.argv[2]:
    params.type_k = params.type_v = int(sys.argv[2])
context = ll.llama_init_from_model(model, params)
memory = ll.llama_get_memory(context)
batch = ll.llama_batch_init(PREFILL, 0, 1)


def step(rows):
    '''rows: sequence, position, whether logits are wanted.'''
    batch.n_tokens = len(rows)
    for i, (seq, pos, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = 1000 + (7 * i + 31 * pos) % 30000, pos, 1
        batch.seq_id[i][0], batch.logits[i] = seq, wanted
    start = time.perf_counter()
    if ll.llama_decode(context, batch):
        sys.exit("llama_decode failed")
    ll.llama_synchronize(context)
    return time.perf_counter() - start


def prompt(seq, n):
    return step([(seq, p, p == n - 1) for p in range(n)])


def decode(streams, n):
    ll.llama_memory_clear(memory, True)
    for seq in range(streams):
        prompt(seq, n)
    return min(step([(seq, n + i, True) for seq in range(streams)]) for i in range(DECODE))


def prefill():
    ll.llama_memory_clear(memory, True)
    return prompt(0, PREFILL)


prefill()
print(json.dumps({"prefill": PREFILL / min(prefill() for _ in range(3)), "one": 1 / decode(1, LONG),
                  "many": MANY / decode(MANY, SHORT)}))
"""


def run(command, **env):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **env))
    if done.returncode and not done.stdout:
        sys.exit(f"peers.py: {' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def best(into, found):
    for name, value in found.items():
        into[name] = max(into.get(name, 0.0), value)


def engine(opts, *flags):
    """bench_engine's tokens/s, and the share of the read bandwidth that decoding has."""
    text = run([opts.build + "/bench/bench_engine", *flags])
    said = re.search(r"prefill (\d+) tokens/s, decode of 16 (\d+) and \d+ tokens/s, of 1 (\d+)", text)
    share = re.search(r"engine decode 1 .* ratio +([\d.]+)", text)
    return {"prefill": float(said[1]), "many": float(said[2]), "one": float(said[3]), "read": float(share[1])}


def llama(opts, path):
    """Repacked weights may use AMX, which some virtual machines name and do not have."""
    kind = "0" if path.endswith("f32.gguf") else ""  # keys and values in f32 as well
    command = [opts.llama, "-c", LLAMA, path, kind]
    repacked = subprocess.run([*command, "repacked"], capture_output=True, text=True)
    text = repacked.stdout if repacked.returncode == 0 else run([*command, "plain"])
    return json.loads(text.splitlines()[-1])


def speed(text):
    return float(re.search(r"(\d+) tokens/s", text)[1])


def train(opts):
    text = run([opts.build + "/bench/bench_train"])
    return {"train": speed(text), "products": float(re.search(r"ratio ([\d.]+)", text)[1])}


def grpo_ours(opts, root):
    """The seconds of a round, the least of four, and the peak memory in MB."""
    text = run([opts.build + "/miles", "train", "--device", "cpu", "--threads", "2", "--hf-checkpoint", opts.model, "--save",
                root + "/run", "--prompt-data", opts.data + "/train.jsonl", "--input-key", "messages", "--label-key",
                "label", "--apply-chat-template", "--rm-type", "deterministic_random", "--rollout-batch-size", "8",
                "--n-samples-per-prompt", "8", "--rollout-max-response-len", "4", "--num-rollout", "4",
                "--global-batch-size", "64", "--lr", "1e-5", "--overwrite", *opts.flags])
    rounds = re.findall(r"rollout ([\d.]+) s at .*training ([\d.]+) s at .*memory (\d+) MB", text)
    if len(rounds) != 4:
        sys.exit("peers.py: miles train: " + text[-2000:])
    return min(float(r[0]) + float(r[1]) for r in rounds), max(int(r[2]) for r in rounds)


def grpo_trl(opts, root):
    text = run([opts.trl, HERE + "/trl_grpo.py", "--model", opts.model, "--data", opts.data, "--device", "cpu",
                "--prompts", "8", "--samples", "8", "--micro-batch", "64", "--max-tokens", "4", "--steps", "4",
                "--no-eval", "--random-rewards", "--output", root + "/trl"], OMP_NUM_THREADS="2")
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    at = [line["seconds"] for line in lines if "reward" in line]
    return min(b - a for a, b in zip(at, at[1:])), lines[-1]["peak_rss_mb"]


class Table:
    def __init__(self):
        self.missed = False
        print(f"{'work':<42} {'ours':>8} {'peer':>8} {'ratio':>6} {'goal':>6}")

    def row(self, work, ours, peer, goal, least=True, ratio=None):
        ratio = ours / peer if ratio is None else ratio
        ok = ratio >= goal if least else ratio <= goal
        self.missed = self.missed or not ok
        print(f"{work:<42} {ours:>8.1f} {peer:>8.1f} {ratio:>6.2f} {goal:>6.2f} {'' if ok else 'MISS'}", flush=True)


def generation(opts, table, root):
    ours, peer = {"f32": {}, "bf16": {}}, {"f32": {}, "f16": {}}
    for kind in ("f32", "f16") if opts.llama else ():
        run([opts.build + "/miles", "convert", "--hf-checkpoint", opts.model, "--dtype", kind, "--save-gguf",
             f"{root}/{kind}.gguf"])
    for _ in range(opts.turns):
        best(ours["f32"], engine(opts, "--f32"))
        best(ours["bf16"], engine(opts))
        for kind in peer if opts.llama else ():
            best(peer[kind], llama(opts, f"{root}/{kind}.gguf"))
    for kind, other in (("f32", "f32"), ("bf16", "f16")):
        a, b = ours[kind], peer[other]
        table.row(f"decode, one stream, {kind}: reading weights", a["one"], a["one"] / a["read"], 0.90)
        table.row(f"16 streams at 32, {kind}: our prefill", a["many"], a["prefill"], 0.70)
        if opts.llama:
            table.row(f"decode, one stream, {kind}: llama.cpp {other}", a["one"], b["one"], 1.0)
            table.row(f"16 streams at 32, {kind}: llama.cpp {other}", a["many"], b["many"], 1.2 if other == "f16" else 1.0)
            table.row(f"prefill 512, {kind}: llama.cpp {other}", a["prefill"], b["prefill"], 1.0)


# Runs in the Python of --llama: quantizes a GGUF file.
LLAMA_QUANTIZE = r"""
import ctypes, sys
import llama_cpp as ll
quiet = ll.llama_log_callback(lambda level, text, data: None)
ll.llama_log_set(quiet, ctypes.c_void_p(0))
ll.llama_backend_init()
params = ll.llama_model_quantize_default_params()
params.ftype = getattr(ll, "LLAMA_FTYPE_MOSTLY_" + sys.argv[3])
sys.exit(ll.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""


def quantized(opts, table, root):
    """Weights of 4 and 8 bits, beside llama.cpp's, which quantizes the inputs of layers to int8, too: no goal."""
    ours, peer = {}, {"Q4_0": {}, "Q8_0": {}}
    for kind in peer:
        run([opts.llama, "-c", LLAMA_QUANTIZE, f"{root}/f16.gguf", f"{root}/{kind}.gguf", kind])
    for _ in range(opts.turns):
        found = re.findall(r"(decode|prefill) +(\S+) +\d threads +([\d.]+) tokens/s", run([opts.build + "/bench/bench_quant"]))
        best(ours, {f"{work} {kind}": float(rate) for work, kind, rate in found})
        for kind, rates in peer.items():
            best(rates, llama(opts, f"{root}/{kind}.gguf"))
    for kind, other in (("int4", "Q4_0"), ("int8", "Q8_0")):
        table.row(f"decode, one stream, {kind}: llama.cpp {other}", ours["decode " + kind], peer[other]["one"], 0)
        table.row(f"prefill 512, {kind}: llama.cpp {other}", ours["prefill " + kind], peer[other]["prefill"], 0)


def training(opts, table):
    ours, peer = {}, 0.0
    for _ in range(opts.turns):
        best(ours, train(opts))
        if opts.torch:
            peer = max(peer, speed(run([opts.torch, HERE + "/bench_torch.py", "--threads", "2", "--turns", "5"])))
    table.row("train step, 48M: its GEMMs in OpenBLAS", ours["train"], ours["train"] / ours["products"], 0.85)
    if opts.torch:
        table.row("train step, 48M: PyTorch", ours["train"], peer, 1.15)


def grpo(opts, table, root):
    ours, memory = grpo_ours(opts, root)
    theirs, their_memory = grpo_trl(opts, root)
    table.row("GRPO round, 8 x 8 x 4 tokens, s: TRL", ours, theirs, 0.5, least=False)
    table.row("its memory, MB: 2,500", memory, 2500, 1.0, least=False)
    print(f"(TRL's memory: {their_memory} MB)")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--data")
    p.add_argument("--llama")
    p.add_argument("--torch")
    p.add_argument("--trl")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--flags", default="", help="of miles train, for the GRPO round")
    opts = p.parse_args()
    opts.flags = opts.flags.split()
    if opts.trl and not opts.data:
        sys.exit("peers.py: --trl needs --data")
    table = Table()
    with tempfile.TemporaryDirectory() as root:
        generation(opts, table, root)
        if opts.llama:
            quantized(opts, table, root)
        training(opts, table)
        if opts.trl:
            grpo(opts, table, root)
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
