#!/usr/bin/env python3
"""gen_scripts.py FLAGS_JSON - writes tests/golden/scripts/scripts.txt: a command line for each
launch script of Miles, from the flags that the scripts contain.

FLAGS_JSON maps a script to its driver and to its flags as written there.  Shell variables get the
values that the scripts give them, or the first of several; words that belong to the shell are left
out, and so are sizes of the architecture, which a tiny model does not have.  Paths begin with
$ROOT.  A line: script, driver, model of tests/golden (or "-") with a number of layers, words."""
import json
import re
import sys

VALUES = {  # of variables, as the scripts set them
    "BASE_DIR": "$ROOT", "BASE_FOLDER": "$ROOT", "DATASETS_DIR": "$ROOT", "DATA_DIR": "$ROOT", "MODELS_DIR": "$ROOT",
    "MODEL_DIR": "$ROOT", "TEACHER_IP": "127.0.0.1", "CODE_TEACHER_IP": "127.0.0.1", "MATH_TEACHER_IP": "127.0.0.1",
    "TEACHER_PORT": "13141", "CODE_TEACHER_PORT": "13142", "MATH_TEACHER_PORT": "13141", "TIMESTAMP_SUFFIX": "0",
    "TRAIN_BACKEND": "megatron", "WANDB_KEY": "key", "WANDB_API_KEY": "key", "MODEL_NAME_LOWER": "model", "NNODES": "2",
    "ACTOR_NUM_NODES": "2", "BUFFER_SIZE": str(1 << 30), "CKPT_SAVE_DIR": "$ROOT", "CP": "1",
    "DATASET_LOCAL_NAME": "geo3k", "DECODER_LAST_PIPELINE_NUM_LAYERS": "5", "EP": "8",
    "EVAL_CONFIG": "$ROOT/eval.yaml", "EVAL_CONFIG_PATH": "$ROOT/eval.yaml", "GPUS_PER_NODE": "8",
    "LR": "2e-5", "MAX_TOKENS_PER_GPU": "2048", "MILES_OPTIMIZER": "adam", "MIXED_DATA": "$ROOT/mixed.jsonl",
    "MODE": "broadcast", "MULTIMODAL_KEYS": '{"image":"images"}', "NUM_GPUS": "8", "NUM_ROLLOUT_GPUS": "8",
    "MODEL_NAME": "model", "NUM_TRAIN_NODES": "2", "OPD_KL_COEF": "0.2", "OUTPUT_DIR": "$ROOT/run", "PP": "1",
    "PROMPT_SET": "$ROOT/dapo-math-17k.jsonl", "ROLLOUT_GPUS_PER_ENGINE": "1", "SGLANG_DECODE_MAX_BS": "8",
    "SGLANG_MEM_FRAC": "0.70", "SGLANG_WORLD_SIZE": "8", "TEACHER_LOAD": "$ROOT/teacher", "TP": "4",
    "TRAIN_GPUS_PER_NODE": "8", "mode": "p2p",
    "RM_FUNC": "examples.on_policy_distillation.qwen3_5_35b_selfdistill.rm.reward_func_pure_opd",
}
SCRIPT_VALUES = {  # of variables, where scripts set them differently
    "run-glm4.5-air-8node": {"NUM_TRAIN_NODES": "4", "NUM_ROLLOUT_GPUS": "32"},
    "run-kimi-k2-64node": {"NUM_TRAIN_NODES": "32", "NUM_ROLLOUT_GPUS": "256"},
    "run-qwen3-235B-A22B-16node": {"NUM_TRAIN_NODES": "8", "NUM_ROLLOUT_GPUS": "64",
                                   "DECODER_LAST_PIPELINE_NUM_LAYERS": "22"},
}
LAYERS = [  # the name of a script that divides layers into pipeline stages, and how many layers its model has
    (r"qwen3-235B", 94), (r"qwen3-30b-a3b-fp8-two", 48), (r"kimi-k2", 61), (r"glm4\.5-air", 46), (r"glm4\.5-355B", 92), (r"qwen3-next", 48),
]
MODELS = [  # the name of a checkpoint, its model here
    (r"VL|geo3k", "wrappers/qwen3_vl"), (r"Qwen3\.[56]", "wrappers/qwen3_5"), (r"Qwen2", "data/qwen2"),
    (r"Qwen3-Next", "data/qwen3_next"), (r"Qwen3-(30B|235B)", "data/qwen3_moe"), (r"Qwen3", "data/qwen3"),
    (r"GLM-?4\.7", "data/glm4_moe_lite"), (r"GLM-?4\.5", "data/glm4_moe"), (r"GLM-?5", "data/glm_moe_dsa"),
    (r"GLM-Z1", "data/glm4"), (r"gpt-oss", "data/gpt_oss"), (r"Kimi-K2\.5", "wrappers/kimi_k25"),
    (r"Kimi-K2", "data/deepseek_v3"), (r"Nemotron", "data/nemotron_h"),
]
LISTS = {"sglang-cuda-graph-bs", "eval-prompt-data", "spec", "opd-teacher-urls", "offload-rollout-level",
         "recompute-modules", "rollout-stop", "wandb-group"}
SHAPE = {"num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels",
         "vocab-size", "num-experts", "moe-router-topk", "moe-ffn-hidden-size", "rotary-base", "norm-epsilon"}


def value(word, values):
    word = word.strip("\"'")
    for _ in range(3):
        word = re.sub(r"\$\{?(?!ROOT)(\w+)\}?", lambda m: values.get(m[1], "$ROOT/" + m[1]), word)
    word = word.replace("$ROOT/$ROOT", "$ROOT")
    return word if word.startswith("{") or not re.search(r"[\"'()\[\]<>|;`]", word) else None


def one(words, values):
    """The value of a flag that takes one, or none: not a shell's."""
    text = " ".join(words)
    product = re.match(r"\$\(\(\s*([\d\s*${}A-Z_]+)", text)
    if product:
        n = 1
        for factor in product[1].split("*"):
            n *= int(value(factor.strip(), values))
        return [str(n)]
    return [v for v in [value(words[0], values)] if v] if words else []


def many(words, values):
    found = []
    for w in words:
        if w == "$(seq":
            break
        found += [v for v in [value(w, values)] if v]
    return found


def main():
    for name, script in json.load(open(sys.argv[1])).items():
        words, model = [], "-"
        values = dict(VALUES, **next((v for part, v in SCRIPT_VALUES.items() if part in name), {}))
        for flag, *given in script["flags"]:
            bare = flag[2:]
            if bare in SHAPE:
                continue
            got = [] if flag == "--colocate" else many(given, values) if bare in LISTS else one(given, values)
            if bare == "hf-checkpoint":
                text = given[0] if "MODEL_NAME" not in given[0] else name
                model = next((m for p, m in MODELS if re.search(p, text, re.I)), "-")
            if bare == "pipeline-model-parallel-size" and got != ["1"]:
                model += next((":%d" % n for p, n in LAYERS if re.search(p, name, re.I)), "")
            words += [flag] + [g.replace(" ", "") for g in got]
        if "--enable-mtp-training" in words:
            model = "mtp/qwen3_next"  # it has the layer
        print(name.replace("+", "/"), script["driver"] or "-", model, *words)


main()
