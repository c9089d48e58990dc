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


def write_tokenizer(path):
    vocab = {byte_level(c): i for i, c in enumerate(CHARS)}
    for s in SPECIAL:
        vocab[s] = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0",
                   "added_tokens": [dict(flags, id=vocab[s], content=s, special=True) for s in SPECIAL],
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


class Server:
    """`miles serve` on a free port, ended with SIGTERM."""

    def __init__(self, miles, *flags):
        self.miles = miles
        self.dir = tempfile.TemporaryDirectory(prefix="miles-serve-")
        self.model = make_model(self.dir.name)
        self.proc = subprocess.Popen([miles, "serve", "--model-path", self.model, "--port", "0",
                                      "--served-model-name", "tiny", *flags],
                                     stdout=subprocess.PIPE, text=True)
        line = self.proc.stdout.readline()
        self.url = re.search(r"http://\S+", line).group(0)

    def ask(self, path, body=None, headers=None, timeout=60):
        """Status and reply; the reply is JSON where it can be read as that."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, headers or {})
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

    def stop(self, signals=1):
        for _ in range(signals):
            self.proc.send_signal(signal.SIGTERM)
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


def write_tokens(path, ids):
    """A safetensors file with tokens.0."""
    header = json.dumps({"tokens.0": {"dtype": "I32", "shape": [len(ids)],
                                      "data_offsets": [0, 4 * len(ids)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(ids)}i", *ids))


def score(miles, model, ids):
    """The bytes of the log-probabilities of ids[1:], by `miles score`."""
    with tempfile.TemporaryDirectory() as d:
        write_tokens(d + "/in", ids)
        subprocess.run([miles, "score", "--hf-checkpoint", model, "--input", d + "/in", "--output",
                        d + "/out"], check=True)
        with open(d + "/out", "rb") as f:
            data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + n])["logprobs.0"]["data_offsets"]
    return [data[8 + n + i:8 + n + i + 4] for i in range(begin, end, 4)]


def bits(x):
    return struct.pack("<f", x)
