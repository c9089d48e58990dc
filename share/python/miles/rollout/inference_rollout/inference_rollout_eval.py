"""Evaluations, for functions that call Miles' own."""

from miles.rollout.sglang_rollout import run_eval_datasets

__all__ = ["run_eval_datasets"]
