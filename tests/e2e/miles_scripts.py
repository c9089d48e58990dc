#!/usr/bin/env python3
"""miles_scripts.py --miles PROGRAM [--write] - a dry run of every launch script of Miles.

tests/golden/scripts/scripts.txt has the command lines, tests/golden/scripts/missing.txt what each of
them still lacks.  Either a script passes, or every error is about one of the capabilities that
missing.txt names for it, and each of these has one: a capability that is not missing any more is an
error, too.  A script is tried as it is and, to see what else it lacks, with one rank.  --write writes
missing.txt."""
import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

GOLDEN = "tests/golden"
SCRIPTS = GOLDEN + "/scripts/scripts.txt"
MISSING = GOLDEN + "/scripts/missing.txt"

# A capability, and how errors speak of it.
CAPABILITIES = [
    ("FP8", r"--fp8"),  # with sizes that divide the model
    ("tensor parallel", r"--tensor-model-parallel-size|--sglang-tp-size|--rollout-num-gpus-per-engine"),
    ("pipeline parallel", r"--pipeline-model-parallel-size|--decoder-(first|last)-pipeline"),
    ("context parallel", r"--context-parallel-size|--allgather-cp"),
    ("expert parallel", r"--expert-model-parallel-size|--expert-tensor-parallel-size|--sglang-e(xpert-)?p"),
    ("DP attention", r"--sglang-enable-dp|--sglang-dp-size"),
    ("ranks", r"world size|mpirun|--actor-num"),
    ("LoRA", r"LoRA"),
    ("speculative", r"speculative"),
    ("MTP training", r"multi-token prediction"),
    ("fsdp", r"--train-backend"),
    ("muon", r"muon"),
    ("OPD top-k", r"top-k tokens|--opd-log-prob-top-k"),
    ("several teachers", r"--opd-teacher-key"),
    ("multimodal", r"vision models"),
    ("parquet", r"parquet"),
    ("user Python", r"--custom-\S+-path|no reward: give|(reward|extension|function|module) .*(examples\.|miles\.)|examples\.[\w.]*"),
    ("unknown to Miles", r"Miles does not have it"),
]


def tokenizer(directory):
    chars = "abcdefghijklmnopqrstuvwxyz0123456789 .?"
    vocab = {c: i + 3 for i, c in enumerate(chars)}
    vocab.update({"<unk>": 0, "<s>": 1, "</s>": 2})
    added = [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for t, i in (("<unk>", 0), ("<s>", 1), ("</s>", 2))]
    text = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": []}}
    with open(directory + "/tokenizer.json", "w") as f:
        json.dump(text, f)
    with open(directory + "/tokenizer_config.json", "w") as f:
        json.dump({"eos_token": "</s>", "bos_token": "<s>", "chat_template":
                   "{% for m in messages %}{{ m.content }}</s>{% endfor %}"}, f)


def make_root(root):
    """Data files and configurations that command lines name."""
    row = {k: "how many?" for k in ("prompt", "problem", "index")}
    row.update({"label": "7", "answer": "7", "reward_model": "7", "messages": [
        {"role": "user", "content": "how many?"}, {"role": "assistant", "content": "7"}]})
    with open(root + "/data.jsonl", "w") as f:
        f.write((json.dumps(row) + "\n") * 600)
    shutil.copy("tests/golden/scripts/data.parquet", root + "/data.parquet")
    with open(root + "/eval.yaml", "w") as f:
        f.write("eval:\n  datasets:\n    - name: aime\n      path: %s/data.jsonl\n" % root)
    with open(root + "/mis.yaml", "w") as f:
        f.write("use_tis: true\nuse_rs: true\ntis_level: token\nrs_level: token\ntis_mode: truncate\n"
                "tis_lower_bound: 0.5\ntis_upper_bound: 2.0\nrs_lower_bound: null\nrs_upper_bound: null\n"
                "rs_veto_threshold: 1.0e-4\ntis_batch_normalize: true\n")


def deepen(model, n_layers):
    """Gives the model more layers: copies of its own, so that pipeline stages have as many as in the script."""
    with open(model + "/config.json") as f:
        config = json.load(f)
    text = config.get("text_config", config)
    n, types = text["num_hidden_layers"], text.get("layer_types")
    text["num_hidden_layers"] = n_layers
    if types:
        text["layer_types"] = (types * n_layers)[:n_layers]
    with open(model + "/config.json", "w") as f:
        json.dump(config, f)
    with open(model + "/model.safetensors", "rb") as f:
        header, data = json.loads(f.read(struct.unpack("<Q", f.read(8))[0])), f.read()
    rows, body = {}, bytearray()
    for name, row in header.items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if name == "__metadata__":
            continue
        at = int(layer[1]) if layer else None
        copies = [at] if at is None or (at < n - 1 and not types) else \
            [i for i in range(at, n_layers) if i == at or (i >= n and (i % n == at or not types))]
        for i in copies:
            start = len(body)
            body += data[slice(*row["data_offsets"])]
            rows[re.sub(r"\.layers\.\d+\.", ".layers.%s." % i, name)] = dict(row, data_offsets=[start, len(body)])
    head = json.dumps(rows).encode()
    with open(model + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + body)


# User modules that scripts name, by flag; the functions are not called.
SIGNATURES = {
    "custom-tis-function-path": "def {name}(**kwargs)",
    "custom-generate-function-path": "async def {name}(args, sample, sampling_params)",
    "eval-function-path": "def {name}(args, rollout_id, data_source, evaluation=False)",
}


def make_modules(root):
    """Python modules as a checkout of Miles has them, without their contents."""
    with open(SCRIPTS) as f:
        found = set(re.findall(r"--(\S+-path) ((?!miles\.)[a-zA-Z_]\w*(?:\.\w+)+)(?=\s)", f.read()))
    for flag, path in sorted(found):
        *module, name = path.split(".")
        file = os.path.join(root, "python", *module) + ".py"
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "a") as f:
            f.write(SIGNATURES.get(flag, "async def {name}(args, sample, **kwargs)").format(name=name) + ":\n    pass\n\n\n")


def make_model(root, name):
    """name: a folder of tests/golden, and :N for a copy with N layers."""
    model = "%s/models/%s" % (root, name.replace(":", "-"))
    folder, _, n_layers = name.partition(":")
    if not os.path.isdir(model):
        os.makedirs(model)
        for file in ("config.json", "model.safetensors"):
            shutil.copy("%s/%s/%s" % (GOLDEN, folder, file), model)
        tokenizer(model)
        if n_layers:
            deepen(model, int(n_layers))
    return model


def put_paths(words, root, model, save):
    """The command line with the files that exist here."""
    flag, out = "", []
    for w in words:
        if w.startswith("--"):
            flag = w[2:]
        elif flag in ("hf-checkpoint", "ref-load", "opd-teacher-load"):
            w = model
        elif flag in ("load", "save"):
            w = save
        elif flag in ("prompt-data", "eval-prompt-data") and re.search(r"\.(jsonl|parquet)$", w):
            w = root + "/data" + os.path.splitext(w)[1]
        elif flag in ("eval-config", "custom-config-path"):
            w = root + ("/eval.yaml" if flag == "eval-config" else "/mis.yaml")
        out.append(w.replace("$ROOT", root))
    return out


# What the command line of a conversion lacks for a run.
RUN = ("--hf-checkpoint m --prompt-data d.jsonl --input-key prompt --label-key label --rm-type math --num-rollout 1 "
       "--rollout-batch-size 8 --n-samples-per-prompt 8").split()


SIZES = r"--(sglang-)?(\w+-)*parallel-size$|--sglang-[ted]p-size$|--decoder-(first|last)-pipeline|--sglang-enable-dp"


def one_rank(words):
    out, skip = [], False
    for w in words:
        skip = bool(re.match(SIZES, w)) or (skip and not w.startswith("--"))
        out += [] if skip else [w]
    return out


def run(miles, line, root, whole):
    script, driver, name, *words = line.split()
    words = words if whole else one_rank(words)
    model = make_model(root, "wrappers/qwen3_5" if name == "-" else name)
    words = put_paths(words + (RUN if driver == "-" else []), root, model, "%s/runs/%s" % (root, script))
    command = "train-async" if driver == "train_async.py" else "train"
    done = subprocess.run([miles, command, *words, "--dry-run"], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, MILES_DEVICE="cpu", PYTHONPATH=root + "/python"))
    errors = [e for e in done.stderr.splitlines()
              if not re.match(r"(warn|miles( \w+)?: warn)|.*: \d+ errors:$", e) and e.strip()]
    errors = [e for e in errors if re.match(r"miles [\w-]+: |  ", e)] if done.returncode else []
    if done.returncode and not errors:
        errors = ["no message: status %d" % done.returncode]
    return errors


def capabilities(errors):
    found, unknown = [], []
    for e in errors:
        names = [c for c, pattern in CAPABILITIES if re.search(pattern, e)]
        (found.append(names[0]) if names else unknown.append(e))
    return list(dict.fromkeys(sorted(found, key=[c for c, _ in CAPABILITIES].index))), unknown


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--miles", required=True)
    p.add_argument("--write", action="store_true")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    with open(MISSING) as f:
        table = dict(l.rstrip("\n").split("\t") for l in f if l.strip() and not l.startswith("#"))
    wrong, passed, new = [], 0, {}
    with tempfile.TemporaryDirectory() as root, open(SCRIPTS) as f:
        make_root(root)
        make_modules(root)
        for line in f:
            script = line.split(" ", 1)[0]
            errors = run(args.miles, line, root, True) + run(args.miles, line, root, False)
            found, unknown = capabilities(errors)
            if args.verbose:
                print(script, found, *unknown, sep="\n    ")
            wrong += ["%s: %s" % (script, u) for u in unknown]
            if found:
                new[script] = ", ".join(found)
            else:
                passed += not unknown
            if table.pop(script, "") != new.get(script, ""):
                wrong.append("%s lacks '%s'; change its line of %s" % (script, new.get(script, ""), MISSING))
    wrong += ["%s has a line for %s, which is no script" % (MISSING, s) for s in table]
    if args.write:
        with open(MISSING, "w") as f:
            f.write("# What launch scripts of Miles lack; the table may only shrink.  tests/e2e/miles_scripts.py --write writes it.\n")
            f.writelines("%s\t%s\n" % pair for pair in sorted(new.items()))
        return 0
    print("%d of %d scripts pass" % (passed, passed + len(new)))
    print(*wrong, sep="\n")
    return 1 if wrong else 0


sys.exit(main())
