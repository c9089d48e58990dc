#!/usr/bin/env python3
"""Writes tests/golden/reward_model: a tiny sequence classification model made by transformers from
the model of tests/golden/preference, data with margins and with scores, the losses of TRL's
RewardTrainer and of transformers' regression loss on them, step by step, the same of an adapter of PEFT
with the head, and the rewards that transformers computes for the chats.

  python3 tools/gen_reward_model_golden.py    # needs trl 1.16, peft, transformers, torch
"""
import json
import os
import shutil
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
PREFERENCE, HERE = os.path.join(GOLDEN, "preference"), os.path.join(GOLDEN, "reward_model")
BATCH, STEPS, LR = 4, 6, 2e-3


def make_model():
    model = os.path.join(HERE, "model")
    os.makedirs(model, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(PREFERENCE, "model", name), model)
    torch.manual_seed(2)
    load(os.path.join(PREFERENCE, "model")).save_pretrained(model)
    return model


def load(model):
    return AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)


def read(name):
    with open(os.path.join(PREFERENCE, name)) as f:
        return [json.loads(line) for line in f]


def write(name, rows):
    with open(os.path.join(HERE, name), "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")
    return rows


def make_data():
    chats = read("chats.jsonl")
    margins = [dict(row, margin=0.25 * (i % 4)) for i, row in enumerate(chats)]
    scores = [{"prompt": row["prompt"], "completion": row["chosen" if i % 2 else "rejected"],
               "label": i % 2 + 0.125 * (i % 5)} for i, row in enumerate(chats)]
    write("samples.jsonl", [{"prompt": row["prompt"], "response": row[key][0]["content"]}
                            for row in chats for key in ("chosen", "rejected")])
    return write("margins.jsonl", margins), write("scores.jsonl", scores)


def settings(out, **more):
    return dict(output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=LR,
                lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, use_cpu=True,
                bf16=False, gradient_checkpointing=False, save_strategy="no", report_to=[],
                logging_steps=1, train_sampling_strategy="sequential", **more)


def recorder(trainer, losses):
    class Recorder(trainer):
        def compute_loss(self, *args, **kwargs):
            out = super().compute_loss(*args, **kwargs)
            losses.append((out[0] if isinstance(out, tuple) else out).item())
            return out

    return Recorder


def pairs(model, rows, **more):
    from trl import RewardConfig, RewardTrainer

    losses = []
    with tempfile.TemporaryDirectory() as out:
        recorder(RewardTrainer, losses)(
            model=load(model), args=RewardConfig(**settings(out, **more)),
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model)).train()
    return losses


def make_adapter(model):
    """An adapter of all linear layers whose B is not zero, and the head, which PEFT saves whole."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    adapted = get_peft_model(load(model), LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.0, target_modules=[
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        modules_to_save=["score"], init_lora_weights=False))
    adapted.save_pretrained(os.path.join(HERE, "adapter"))
    os.remove(os.path.join(HERE, "adapter", "README.md"))
    path = os.path.join(HERE, "adapter", "adapter_config.json")
    with open(path) as f:
        config = dict(json.load(f), base_model_name_or_path=None)
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def load_adapted(model, **more):
    from peft import PeftModel

    return PeftModel.from_pretrained(load(model), os.path.join(HERE, "adapter"), **more)


def adapted_pairs(model, rows):
    from trl import RewardConfig, RewardTrainer

    losses = []
    with tempfile.TemporaryDirectory() as out:
        recorder(RewardTrainer, losses)(
            model=load_adapted(model, is_trainable=True), args=RewardConfig(**settings(out)),
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model)).train()
    return losses


def tokens(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]


def regression(model, rows):
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = [{"input_ids": tokens(tokenizer, row["prompt"] + row["completion"]), "labels": row["label"]}
            for row in rows]
    losses = []
    with tempfile.TemporaryDirectory() as out:
        recorder(Trainer, losses)(
            model=load(model), args=TrainingArguments(**settings(out)), train_dataset=data,
            data_collator=lambda rows: {
                **tokenizer.pad({"input_ids": [r["input_ids"] for r in rows]}, padding_side="right",
                                return_tensors="pt"),
                "labels": torch.tensor([r["labels"] for r in rows])}).train()
    return losses


def rewards(model, scorer, rows):
    tokenizer = AutoTokenizer.from_pretrained(model)
    scorer.eval()
    out = []
    for row in rows:
        batch = tokenizer.pad({"input_ids": [tokens(tokenizer, row["prompt"] + row[key])
                                             for key in ("chosen", "rejected")]},
                              padding_side="right", return_tensors="pt")
        with torch.no_grad():
            out.append(scorer(**batch).logits.squeeze(-1).tolist())
    return out


def main():
    model = make_model()
    margins, scores = make_data()
    make_adapter(model)
    golden = {
        "pairs": pairs(model, read("chats.jsonl")),
        "implicit": pairs(model, read("implicit.jsonl")),
        "text": pairs(model, read("texts.jsonl")),
        "margin": pairs(model, margins, center_rewards_coefficient=0.05),
        "lora": adapted_pairs(model, read("chats.jsonl")),
        "regression": regression(model, scores),
        "rewards": rewards(model, load(model), read("chats.jsonl")),
        "lora_rewards": rewards(model, load_adapted(model), read("chats.jsonl")),
    }
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        json.dump(golden, f, indent=0)
        f.write("\n")
    for name, losses in golden.items():
        print(name, losses)


main()
