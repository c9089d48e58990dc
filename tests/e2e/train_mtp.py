#!/usr/bin/env python3
"""train_mtp.py --build DIR [--head] [--long] [--device NAME] - a multi-token prediction layer that is trained
online, or, with --head, an EAGLE-3 head that begins with random weights.


The same run is made without speculation and without training of the layer, and with both.  Samples
and checkpoints are equal byte for byte, except the layer's weights and the state of its optimizer,
which change.  A run that is continued from a snapshot saves the bytes of one that was not
interrupted, and ranks that divide the weights go on from one of one process.  With --long, half of the layer's drafts are accepted at the end, or a third of the head's, which
learns to draft one token."""
import argparse
import filecmp
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

LAYER = "model.layers.2."  # after the trunk's two
HEADS, HEAD_DIM, INNER = 4, 16, 96


def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {k: data[slice(*v["data_offsets"])] for k, v in header.items() if k != "__metadata__"}


def miles(build, *args, ranks=1):
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launch, build + "/miles", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit("miles %s\n%s%s" % (" ".join(map(str, args)), done.stdout[-2000:], done.stderr[-4000:]))


def write_tensors(path, values):
    """values: name to dtype, shape, format of an element, elements."""
    header, data = {}, b""
    for name, (dtype, shape, code, x) in values.items():
        part = struct.pack("<%d%s" % (len(x), code), *x)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write_head(folder, model):
    """An EAGLE-3 head with random weights, whose vocabulary has four of five tokens."""
    with open(model + "/config.json") as f:
        trunk = json.load(f)
    hidden, vocab = trunk["hidden_size"], trunk["vocab_size"]
    known = [i for i in range(vocab) if i % 5]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden,
              "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "vocab_size": vocab, "draft_vocab_size": len(known),
              "tie_word_embeddings": False,
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 0, 1], "use_aux_hidden_state": True}}
    shapes = {"fc": (hidden, 3 * hidden), "lm_head": (len(known), hidden), "norm": (hidden,),
              "midlayer.hidden_norm": (hidden,), "midlayer.input_layernorm": (hidden,),
              "midlayer.post_attention_layernorm": (hidden,), "midlayer.self_attn.o_proj": (hidden, HEADS * HEAD_DIM),
              "midlayer.mlp.gate_proj": (INNER, hidden), "midlayer.mlp.up_proj": (INNER, hidden),
              "midlayer.mlp.down_proj": (hidden, INNER)}
    shapes.update({"midlayer.self_attn.%s_proj" % i: (HEADS * HEAD_DIM, 2 * hidden) for i in "qkv"})
    rng, values = random.Random(1), {}
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        x = [rng.gauss(0, 0.05) for _ in range(n)] if len(shape) > 1 else [1.0] * n
        values[name + ".weight"] = ("F32", list(shape), "f", x)
    values["d2t"] = ("I64", [len(known)], "q", [t - i for i, t in enumerate(known)])
    values["t2d"] = ("BOOL", [vocab], "?", [i % 5 > 0 for i in range(vocab)])
    os.mkdir(folder)
    write_tensors(folder + "/model.safetensors", values)
    with open(folder + "/config.json", "w") as f:
        json.dump(config, f)


class Runs:
    def __init__(self, args, root):
        self.build, self.root, self.long, self.head = args.build, root, args.long, args.head
        self.device = args.device
        self.metric = "train/draft_loss" if args.head else "train/mtp_loss"
        self.speculative = ["--sglang-speculative-algorithm", "EAGLE3" if args.head else "EAGLE",
                            "--sglang-speculative-num-steps", "2"]
        self.trained = ["--mtp-num-layers", "1", "--enable-mtp-training"]
        self.n_sft, self.n_rollout = (200, 40) if args.long else (30, 4)
        subprocess.run([args.build + "/tools/quickstart_make", root, "1", "glm4_moe"], check=True)

    def sft(self):
        """The trunk learns the form of answers first."""
        miles(self.build, "sft", "--hf-checkpoint", self.root + "/model", "--prompt-data", self.root + "/lessons.jsonl",
              "--input-key", "messages", "--rollout-batch-size", 32, "--num-rollout", self.n_sft, "--lr", "3e-3",
              "--lr-decay-style", "linear", "--lr-warmup-iters", 10, "--weight-decay", 0, "--save", self.root + "/sft",
              "--device", self.device)
        self.model = "%s/sft/iter_%07d" % (self.root, self.n_sft - 1)
        if self.head:
            write_head(self.root + "/head", self.model)
            self.trained = ["--train-draft", "--sglang-speculative-draft-model-path", self.root + "/head"]

    def train(self, name, *more, rollouts=None, ranks=1):
        n = rollouts or self.n_rollout
        miles(self.build, "train", "--hf-checkpoint", self.model, "--prompt-data", self.root + "/prompts.jsonl",
              "--input-key", "messages", "--label-key", "label", "--apply-chat-template", "--rm-type", "math",
              "--num-rollout", n, "--rollout-batch-size", 16, "--n-samples-per-prompt", 4, "--global-batch-size", 32,
              "--rollout-max-response-len", 8, "--sglang-max-running-requests", 8, "--lr", "5e-4", "--lr-decay-style", "constant", "--weight-decay", 0,
              "--use-dynamic-batch-size", "--max-tokens-per-gpu", 1024, "--save-debug-rollout-data",
              "%s/%s-rounds/{rollout_id}.jsonl.zst" % (self.root, name), "--save", "%s/%s" % (self.root, name),
              "--device", self.device, *more, ranks=ranks)
        return "%s/%s/iter_%07d" % (self.root, name, n - 1)

    def metrics(self, name, key):
        with open("%s/%s/metrics.jsonl" % (self.root, name)) as f:
            rows = [json.loads(line) for line in f]
        return [row[key] for row in rows if key in row]


def check_head(a, b):
    assert a.keys() == b.keys()
    same = {k for k in a if a[k] == b[k]}
    assert same == {"d2t", "t2d"}, sorted(same)


def check_equal_runs(runs, plain, both):
    for i in range(runs.n_rollout):
        files = ["%s/%s-rounds/%d.jsonl.zst" % (runs.root, name, i) for name in ("plain", "both")]
        assert filecmp.cmp(*files, shallow=False), "the samples of rollout %d differ" % i
    assert filecmp.cmp(plain + "/trainer.safetensors", both + "/trainer.safetensors", shallow=False)
    a, b = tensors(plain + "/model.safetensors"), tensors(both + "/model.safetensors")
    changed = {k for k in a if a[k] != b[k]}
    assert a.keys() == b.keys()
    assert changed == {k for k in a if k.startswith(LAYER) and not runs.head}, sorted(changed)
    if runs.head:
        check_head(tensors(runs.root + "/head/model.safetensors"), tensors(both + "/draft/model.safetensors"))
    state = [json.load(open(d + "/state.json")) for d in (plain, both)]
    assert state[1].pop("mtp_optimizer_step") == 2 * runs.n_rollout
    assert state[0] == state[1], state
    assert runs.metrics("plain", "train/grad_norm") == runs.metrics("both", "train/grad_norm")


def check_resumed(runs, both):
    """The second half in another process; on the CPU, whose gradients do not depend on it, with another
    division into micro-batches."""
    half = runs.train("half", *runs.speculative, *runs.trained, rollouts=runs.n_rollout // 2)
    assert os.path.exists(half + "/trainer_mtp.safetensors")
    again = runs.train("half", *runs.speculative, *runs.trained, "--load", runs.root + "/half",
                       "--max-tokens-per-gpu", 400 if runs.device == "cpu" else 1024)
    names = ["model.safetensors", "trainer.safetensors", "trainer_mtp.safetensors"]
    for name in names + ["draft/model.safetensors"] * runs.head:
        assert filecmp.cmp("%s/%s" % (both, name), "%s/%s" % (again, name), shallow=False), name


def check_ranks(runs, both):
    """Ranks that divide the weights: the trunk is that of the same ranks without the training.  With gradient
    shards, ranks or the stages of a pipeline save the bytes of one process.  A snapshot of one process goes on with them."""
    if runs.device != "cpu" or not shutil.which("mpirun") or not os.path.exists(runs.build + "/libmiles_mpi.so"):
        print("skipped: ranks: mpirun or libmiles_mpi.so is missing, or the device is not cpu")
        return 1
    n, parts = runs.n_rollout, ["--tensor-model-parallel-size", "2"]
    others = parts if runs.head else ["--pipeline-model-parallel-size", "2"]
    plain = runs.train("plain-ranks", *parts, rollouts=n // 2, ranks=2)
    half = runs.train("ranks", *runs.speculative, *runs.trained, *parts, rollouts=n // 2, ranks=2)
    assert filecmp.cmp(plain + "/trainer.safetensors", half + "/trainer.safetensors", shallow=False)
    shards = [*runs.speculative, *runs.trained, "--gradient-shards", 2]
    files = [d + "/trainer_mtp.safetensors" for d in (runs.train("shards", *shards, rollouts=1), runs.train(
        "shards-ranks", *shards, *([] if runs.head else others), rollouts=1, ranks=2))]
    assert filecmp.cmp(*files, shallow=False), "ranks save another state with the same gradient shards"
    runs.train("half-ranks", *runs.speculative, *runs.trained, rollouts=n // 2)
    again = runs.train("half-ranks", *runs.speculative, *runs.trained, *others, "--load", runs.root + "/half-ranks",
                       ranks=2)
    a, b = (tensors(d + "/trainer_mtp.safetensors") for d in (both, again))
    assert {k: len(v) for k, v in a.items()} == {k: len(v) for k, v in b.items()}
    one, several = (runs.metrics(name, runs.metric) for name in ("both", "half-ranks"))
    assert one[n] == several[n], "the first step after the snapshot has another loss"
    assert len(one) == len(several) and all(abs(x - y) < 1e-3 * x for x, y in zip(one, several)), (one, several)
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    skipped = 0
    with tempfile.TemporaryDirectory() as root:
        runs = Runs(args, root)
        runs.sft()
        plain = runs.train("plain")
        both = runs.train("both", *runs.speculative, *runs.trained)
        check_equal_runs(runs, plain, both)
        loss, rate = runs.metrics("both", runs.metric), runs.metrics("both", "rollout/spec_accept_rate")
        print("loss %.3f to %.3f, spec_accept_rate %.3f to %.3f" % (loss[0], loss[-1], rate[0], rate[-1]))
        assert loss[-1] < loss[0]
        if args.long:
            last = rate[-10:]
            assert sum(last) / len(last) > (0.3 if runs.head else 0.5), last
        else:
            check_resumed(runs, both)
            skipped = check_ranks(runs, both)
    print("1 passed, 0 failed, %d skipped" % skipped)


main()
