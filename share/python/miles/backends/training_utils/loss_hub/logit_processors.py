"""Log-probs and entropies of the answers."""


def get_log_probs_and_entropy(logits, *, with_entropy=False, **kwargs):
    """Those that the trainer has computed; their derivatives are those of the logits."""
    out = {"log_probs": logits.log_probs}
    if with_entropy:
        out["entropy"] = logits.entropy
    return out
