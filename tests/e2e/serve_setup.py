"""A tiny model with a tokenizer and a chat template, and `miles serve` over it."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import urllib.error
import urllib.request

GOLDEN = "tests/golden/data/llama"
CHARS = "abcdefghijklmnopqrstuvwxyz0123456789{}[]\":,<>_/|.!?()=+-*\n "
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}{% if tools %}{{ tools | length }} tools\n{% endif %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_level(c):
    return {" ": "\u0120", "\n": "\u010a"}.get(c, c)


def write_tokenizer(path, phrases=()):
    """Characters, then the special tokens, then phrases that are tokens of their own."""
    vocab = {byte_level(c): i for i, c in enumerate(CHARS)}
    for s in [*SPECIAL, *phrases]:
        vocab[s] = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0",
                   "added_tokens": [dict(flags, id=vocab[s], content=s, special=s in SPECIAL)
                                    for s in [*SPECIAL, *phrases]],
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                                     "trim_offsets": True, "use_regex": False},
                   "decoder": {"type": "ByteLevel"},
                   "model": {"type": "BPE", "vocab": vocab, "merges": []}}, f)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}, f)
    with open(os.path.join(path, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)


def make_model(path):
    for name in os.listdir(GOLDEN):
        if name == "config.json" or name.startswith("model"):
            shutil.copy(os.path.join(GOLDEN, name), path)
    write_tokenizer(path)
    return path


def make_parrot(path, phrases):
    """A model that answers every chat with these phrases and ends.  Its layers add nothing, and its
    head knows what follows each token."""
    n = 96  # of tokens, and of the hidden state, which is the last token's unit vector
    first, eos = len(CHARS) + len(SPECIAL), len(CHARS) + SPECIAL.index("<|im_end|>")
    chain = [CHARS.index("\n"), *range(first, first + len(phrases)), eos]
    follows = dict(zip(chain, chain[1:]))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": n, "hidden_size": n,
              "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 6,
              "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
              "max_position_embeddings": 512, "tie_word_embeddings": False, "eos_token_id": eos}
    layer = "model.layers.0."
    zeros = {layer + f"self_attn.{x}_proj.weight": [n, n] for x in "qkvo"}
    zeros |= {layer + "mlp.gate_proj.weight": [16, n], layer + "mlp.up_proj.weight": [16, n],
              layer + "mlp.down_proj.weight": [n, 16]}
    tensors = {name: (shape, [0.0] * (shape[0] * shape[1])) for name, shape in zeros.items()}
    for name in "model.norm.weight", layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight":
        tensors[name] = ([n], [1.0] * n)
    tensors["model.embed_tokens.weight"] = ([n, n], [float(i == j) for i in range(n) for j in range(n)])
    tensors["lm_head.weight"] = ([n, n], [10.0 * (follows.get(j) == i) for i in range(n) for j in range(n)])
    write_safetensors(path + "/model.safetensors", tensors)
    with open(path + "/config.json", "w") as f:
        json.dump(config, f)
    write_tokenizer(path, phrases)
    return path


def make_calling(path):
    """Calls the tool "get" twice, after a word."""
    call = ['<tool_call>{"name": "get", ', '"arguments": {"k": 1}}</tool', '_call>']
    again = [x.replace(" ", "") for x in call[:2]] + ["_call>\n"]
    return make_parrot(path, ["wait", *call, *again])


def write_safetensors(path, tensors, dtype="F32"):
    """{name: (shape, values)} with values of four bytes."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'i'}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Server:
    """`miles serve` on a free port, ended with SIGTERM."""
    launcher = []  # mpirun and its flags
    ranks = []     # flags of miles serve

    def __init__(self, miles, *flags, make=make_model, **popen):
        self.miles = miles
        self.dir = tempfile.TemporaryDirectory(prefix="miles-serve-")
        self.model = make(self.dir.name)
        self.proc = subprocess.Popen([*self.launcher, miles, "serve", "--model-path", self.model, "--port", "0",
                                      "--served-model-name", "tiny", *self.ranks, *flags],
                                     stdout=subprocess.PIPE, text=True, **popen)
        line = self.proc.stdout.readline()
        self.url = re.search(r"https?://\S+", line).group(0)

    def ask(self, path, body=None, headers=None, timeout=60):
        """Status and reply; the reply is JSON where it can be read as that."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data,
                                         {"Content-Type": "application/json"} | (headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                status, text = r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def generate(self, **body):
        status, reply = self.ask("/generate", body)
        assert status == 200, (status, reply)
        return reply

    def ranks_of_job(self):
        """Their processes, in order."""
        found = {}
        with open(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children") as f:
            for pid in f.read().split():
                with open(f"/proc/{pid}/environ", "rb") as env:
                    for line in env.read().split(b"\0"):
                        if line.startswith(b"OMPI_COMM_WORLD_RANK="):
                            found[int(line.split(b"=")[1])] = int(pid)
        return [found[r] for r in sorted(found)]

    def first_rank(self):
        """mpirun kills all ranks a second after it gets a signal itself."""
        return self.ranks_of_job()[0] if self.launcher else self.proc.pid

    def terminate(self):
        if self.proc.poll() is None:
            os.kill(self.first_rank(), signal.SIGTERM)

    def stop(self, signals=1):
        for _ in range(signals):
            self.terminate()
        code = self.proc.wait(60)
        self.dir.cleanup()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.proc.kill()
            self.proc.wait()
            self.dir.cleanup()
        else:
            assert self.stop() == 0


def score(miles, model, ids):
    """The bytes of the log-probabilities of ids[1:], by `miles score`."""
    with tempfile.TemporaryDirectory() as d:
        write_safetensors(d + "/in", {"tokens.0": ([len(ids)], ids)}, "I32")
        subprocess.run([miles, "score", "--hf-checkpoint", model, "--input", d + "/in", "--output",
                        d + "/out"], check=True)
        with open(d + "/out", "rb") as f:
            data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + n])["logprobs.0"]["data_offsets"]
    return [data[8 + n + i:8 + n + i + 4] for i in range(begin, end, 4)]


def bits(x):
    return struct.pack("<f", x)


def run_on_ranks(miles, n):
    """Servers that start from now on have n ranks.  False: they cannot; the test has said so."""
    if n == 1:
        return True
    library = os.path.join(os.path.dirname(miles), "libmiles_mpi.so")
    if not shutil.which("mpirun") or not os.path.exists(library):
        print(f"skipped: mpirun or {library} is missing (tools/check-deps.sh --install ranks, then make)")
        return False
    os.environ.update({"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                       "MILES_DEVICE": "cpu"})
    Server.launcher = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", str(n)]
    Server.ranks = ["--tp-size", str(n), "--context-length", "512"]  # ranks share cores here
    return True
