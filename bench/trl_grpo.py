#!/usr/bin/env python3
"""trl_grpo.py --model DIR --data DIR [--device cuda|cpu] ... - TRL's GRPOTrainer on the task of
recipes/smollm2-135M-arithmetic.sh: the same model, prompts, rewards, batch, learning rate and clipping.

Every --eval-interval steps the held-out problems are answered greedily.  A line of JSON for each step and
each evaluation has the seconds since trainer.train() was called, without evaluations: those, imports and
the loading of the model are not counted.  --seconds ends the run after the step that reaches it.

Needs trl, torch, transformers, accelerate and datasets.  TRL generates with transformers: vLLM is not used.
"""
import argparse
import json
import random
import re
import resource
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def rows_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def say(**fields):
    print(json.dumps(fields), flush=True)


def is_right(answer, label):
    return 1.0 if re.search(label, answer) else 0.0


def reward(completions, label, **kwargs):
    return [is_right(c[0]["content"], wanted) for c, wanted in zip(completions, label)]


def random_reward(completions, **kwargs):
    return [float(random.random() < 0.5) for _ in completions]


class Report(TrainerCallback):
    """Prints each step, and evaluates."""

    def __init__(self, opts, tokenizer, rows):
        self.opts, self.tokenizer, self.rows = opts, tokenizer, rows
        self.start = self.reward = 0.0

    def seconds(self):
        return round(time.monotonic() - self.start, 2)

    @torch.no_grad()
    def evaluate(self, model, step):
        if self.opts.no_eval:
            return
        began, reached = time.monotonic(), self.seconds()
        was, self.tokenizer.padding_side = self.tokenizer.padding_side, "left"
        right = 0.0
        for i in range(0, len(self.rows), 64):
            rows = self.rows[i : i + 64]
            given = self.tokenizer.apply_chat_template([r["messages"] for r in rows], add_generation_prompt=True,
                                                       padding=True, return_tensors="pt", return_dict=True)
            given = given.to(model.device)
            out = model.generate(**given, max_new_tokens=self.opts.max_tokens, do_sample=False)
            said = self.tokenizer.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
            right += sum(is_right(s, r["label"]) for s, r in zip(said, rows))
        self.tokenizer.padding_side = was
        say(step=step, held_out=round(right / len(self.rows), 4), seconds=reached)
        self.start += time.monotonic() - began

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.start = time.monotonic()
        self.evaluate(model, 0)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "reward" in logs:
            say(step=state.global_step, reward=round(logs["reward"], 4), seconds=self.seconds(),
                length=logs.get("completions/mean_length"))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        over = self.seconds() >= self.opts.seconds
        if state.global_step % self.opts.eval_interval == 0 or over or state.global_step == self.opts.steps:
            self.evaluate(model, state.global_step)
        control.should_training_stop = control.should_training_stop or over
        return control


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True, help="the folder of train.jsonl and test.jsonl")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--prompts", type=int, default=64, help="of a step")
    p.add_argument("--samples", type=int, default=16, help="of a prompt")
    p.add_argument("--micro-batch", type=int, default=256, help="samples")
    p.add_argument("--max-tokens", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--eval-interval", type=int, default=10)
    p.add_argument("--seconds", type=float, default=1e9)
    p.add_argument("--no-eval", action="store_true")
    p.add_argument("--random-rewards", action="store_true", help="0 or 1, so that every group has a gradient")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--output", default="/tmp/trl_grpo")
    return p.parse_args()


def main():
    opts = options()
    cuda = opts.device == "cuda"
    tokenizer = AutoTokenizer.from_pretrained(opts.model)
    model = AutoModelForCausalLM.from_pretrained(opts.model, dtype=torch.float32)
    train = [{"prompt": r["messages"], "label": r["label"]} for r in rows_of(opts.data + "/train.jsonl")]
    batch = opts.prompts * opts.samples
    config = GRPOConfig(
        output_dir=opts.output, seed=opts.seed, use_cpu=not cuda, bf16=cuda, report_to=[], save_strategy="no",
        per_device_train_batch_size=min(opts.micro_batch, batch),
        gradient_accumulation_steps=max(1, batch // opts.micro_batch), gradient_checkpointing=False,
        num_generations=opts.samples, max_completion_length=opts.max_tokens, temperature=1.0, beta=0.0,
        epsilon=0.2, epsilon_high=0.28, loss_type="grpo", scale_rewards="group", num_iterations=1,
        learning_rate=opts.lr, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
        max_steps=opts.steps, logging_steps=1, disable_tqdm=True)
    report = Report(opts, tokenizer, rows_of(opts.data + "/test.jsonl"))
    trainer = GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=random_reward if opts.random_rewards else reward, args=config,
                          train_dataset=Dataset.from_list(train), callbacks=[report])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    say(end=True, seconds=report.seconds(), peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        gpu_mb=torch.cuda.max_memory_allocated() // 2**20 if cuda else 0)


if __name__ == "__main__":
    sys.exit(main())
