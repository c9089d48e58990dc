"""DeepScaleR's reward, by miles' own grader."""

from miles import host


def get_deepscaler_rule_based_reward(response, label):
    return host.ask("grade", type="deepscaler", response=response, label=label)


def get_gemma_math_reward(response, label):
    return host.ask("grade", type="gemma_math", response=response, label=label)
