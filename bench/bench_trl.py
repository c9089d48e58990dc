#!/usr/bin/env python3
"""bench_trl.py --model DIR --data DIR - TRL's GRPOTrainer on the task of recipes/smollm2-135M-arithmetic.sh, on the CPU.

A peer for docs/RESULTS.md: the same checkpoint, problems, reward, batch, learning rate and number of threads as the
command there.  Prints a JSON line for each step (wall-clock seconds since the start of training, reward, tokens per
second) and for each greedy evaluation of the held-out problems, whose time does not count.

Needs torch, transformers, trl and datasets (pip)."""
import argparse
import json
import re
import resource
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def rows(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def reward(completions, label, **_):
    """1 when the answer ends with the right number, as --rm-type regex."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(bool(re.search(pattern, t))) for t, pattern in zip(texts, label)]


def say(**row):
    print(json.dumps(row), flush=True)


@torch.no_grad()
def solved(model, tokenizer, tests, length):
    """The fraction of problems with a right greedy answer."""
    right = 0
    for i in range(0, len(tests), 57):
        part = tests[i:i + 57]
        texts = [tokenizer.apply_chat_template(r["messages"], add_generation_prompt=True, tokenize=False) for r in part]
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        out = model.generate(**batch, max_new_tokens=length, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        answers = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
        right += sum(reward(answers, [r["label"] for r in part]))
    return right / len(tests)


class Watch(TrainerCallback):
    def __init__(self, a, tokenizer, tests):
        self.a, self.tokenizer, self.tests = a, tokenizer, tests
        self.begin, self.paused, self.tokens = 0.0, 0.0, 0

    def now(self):
        return time.monotonic() - self.begin - self.paused

    def evaluate(self, model, step):
        if not self.tests:
            return
        begin = time.monotonic()
        mode = model.training
        model.eval()
        share = solved(model, self.tokenizer, self.tests, self.a.length)
        model.train(mode)
        self.paused += time.monotonic() - begin
        say(step=step, seconds=round(self.now(), 1), held_out=round(share, 4))

    def on_train_begin(self, args, state, control, model=None, **_):
        self.begin = time.monotonic()
        self.evaluate(model, 0)

    def on_log(self, args, state, control, logs=None, **_):
        if "reward" not in logs:
            return
        at = self.now()
        self.tokens += logs["completions/mean_length"] * self.a.prompts * self.a.samples
        say(step=state.global_step, seconds=round(at, 1), reward=logs["reward"], length=logs["completions/mean_length"],
            tokens_per_s=round(self.tokens / at, 1))

    def on_step_end(self, args, state, control, model=None, **_):
        if self.a.every and state.global_step % self.a.every == 0 and self.now() < self.a.seconds:
            self.evaluate(model, state.global_step)
        control.should_training_stop = control.should_training_stop or self.now() > self.a.seconds
        return control

    def on_train_end(self, args, state, control, model=None, **_):
        self.evaluate(model, state.global_step)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True, help="directory with train.jsonl and test.jsonl")
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--length", type=int, default=16)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-5)
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--seconds", type=float, default=1e9, help="stop after the step in which these have passed")
    p.add_argument("--every", type=int, default=0, help="steps between two evaluations; 0: at the begin and the end")
    p.add_argument("--held-out", type=int, help="problems of an evaluation; all unless given, 0: none")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=getattr(torch, a.dtype))
    train = Dataset.from_list([{"prompt": r["messages"], "label": r["label"]} for r in rows(a.data + "/train.jsonl")])
    batch = a.prompts * a.samples
    config = GRPOConfig(
        output_dir="/tmp/trl-output", use_cpu=True, seed=a.seed, max_steps=a.steps, logging_steps=1, save_strategy="no",
        report_to=[], learning_rate=a.lr, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
        adam_beta2=0.98, per_device_train_batch_size=a.micro_batch, gradient_accumulation_steps=batch // a.micro_batch,
        num_generations=a.samples, max_completion_length=a.length, temperature=1.0, beta=0.0, epsilon=0.2,
        epsilon_high=0.28, gradient_checkpointing=False, bf16=False, disable_tqdm=True)
    watch = Watch(a, tokenizer, rows(a.data + "/test.jsonl")[:a.held_out])
    GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=train, processing_class=tokenizer,
                callbacks=[watch]).train()
    say(resident_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, trl_tokens=round(watch.tokens))


if __name__ == "__main__":
    main()
