"""DAPO's reward, by miles' own grader."""

from miles import host


def compute_score(solution_str, ground_truth, **kwargs):
    """{"score": 1.0 or -1.0, "acc": bool, "pred": str}."""
    return host.ask("grade", type="dapo", response=solution_str, label=ground_truth)
