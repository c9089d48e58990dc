"""Grading of mathematical answers, by miles' own graders."""

from miles import host


def extract_answer(passage):
    r"""The contents of the last \boxed{}; None: there is none."""
    return host.ask("boxed", response=passage)


def grade_answer_verl(solution_str, ground_truth):
    """Whether the boxed answer equals the label."""
    if not ground_truth:
        return False
    return host.ask("grade", type="math", response=solution_str, label=ground_truth) == 1
