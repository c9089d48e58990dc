"""Multiple choice, by miles' own grader."""

from miles import host


def compute_gpqa_reward(response, label, metadata=None):
    return host.ask("grade", type="gpqa", response=response, label=label, metadata=metadata)
