#!/usr/bin/env python3
"""Writes tests/golden/preference: a tiny model with a tokenizer, preference data in TRL's
formats, and the losses of TRL's trainers on them, step by step.

  python3 tools/gen_preference_golden.py MODEL    # a model with the tokenizer of make quickstart
                                                  # needs trl 1.16, transformers, torch
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "preference")
ROWS, BATCH, STEPS, LR = 12, 4, 6, 2e-3
NAMES = ["Anna", "Ben", "Cleo", "Dan"]
THINGS = ["eggs", "stones", "coins"]


def make_model(source):
    model = os.path.join(HERE, "model")
    os.makedirs(model, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(source, name), model)
    config = AutoConfig.from_pretrained(source)
    config.hidden_size, config.intermediate_size, config.head_dim = 32, 48, 16
    config.num_attention_heads, config.num_key_value_heads = 2, 1
    torch.manual_seed(1)
    config.initializer_range = 0.2
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(model)
    return model


def write(name, rows):
    with open(os.path.join(HERE, name), "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")
    return Dataset.from_list(rows)


def make_data():
    chats, implicit, texts, singles = [], [], [], []
    for i in range(ROWS):
        a, b = 3 + 2 * i % 7, 1 + 5 * i % 4
        ask = f"{NAMES[i % 4]} has {a} {THINGS[i % 3]} and finds {b} more. How many {THINGS[i % 3]}?"
        right, wrong = f"\\boxed{{{a + b}}}", f"It is {a + 2 * b}, I think." if i % 3 else f"{a}"
        user = [{"role": "user", "content": ask}]
        good, bad = ([{"role": "assistant", "content": x}] for x in (right, wrong))
        chats.append({"prompt": user, "chosen": good, "rejected": bad})
        implicit.append({"chosen": user + good, "rejected": user + bad})
        texts.append({"prompt": ask, "chosen": " " + right, "rejected": " " + wrong})
        singles.append({"prompt": user, "completion": good if i % 3 else bad, "label": i % 3 > 0})
    return (write("chats.jsonl", chats), write("implicit.jsonl", implicit),
            write("texts.jsonl", texts), write("single.jsonl", singles))


def settings(out, **more):
    return dict(output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=LR,
                lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, use_cpu=True,
                bf16=False, gradient_checkpointing=False, save_strategy="no", report_to=[],
                logging_steps=1, train_sampling_strategy="sequential", **more)


def curve(trainer, config, model, data, ref=False, **more):
    losses = []

    class Recorder(trainer):
        def compute_loss(self, *args, **kwargs):
            out = super().compute_loss(*args, **kwargs)
            losses.append((out[0] if isinstance(out, tuple) else out).item())
            return out

    with tempfile.TemporaryDirectory() as out:
        tokenizer = AutoTokenizer.from_pretrained(model)
        actor = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        Recorder(model=actor, args=config(**settings(out, **more)), train_dataset=data,
                 processing_class=tokenizer).train()
    return losses


def main():
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    model = make_model(sys.argv[1])
    chats, implicit, texts, singles = make_data()
    golden = {
        "dpo": curve(DPOTrainer, DPOConfig, model, chats, beta=0.5),
        "dpo_implicit": curve(DPOTrainer, DPOConfig, model, implicit, beta=0.5),
        "dpo_text": curve(DPOTrainer, DPOConfig, model, texts, beta=0.5),
        "hinge": curve(DPOTrainer, DPOConfig, model, chats, beta=0.5, loss_type="hinge"),
        "ipo": curve(DPOTrainer, DPOConfig, model, chats, beta=0.5, loss_type="ipo"),
        "kto": curve(KTOTrainer, KTOConfig, model, singles, beta=0.5, desirable_weight=1.5),
        # Text: these two trainers put a second end token after the answer of a chat.  CPO adds
        # the likelihood of the chosen answer unless cpo_alpha is 0.
        "simpo": curve(CPOTrainer, CPOConfig, model, texts, beta=0.5, loss_type="simpo",
                       cpo_alpha=0.0, simpo_gamma=0.3),
        "orpo": curve(ORPOTrainer, ORPOConfig, model, texts, beta=0.5),
    }
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        json.dump(golden, f, indent=0)
        f.write("\n")
    for name, losses in golden.items():
        print(name, losses)


main()
