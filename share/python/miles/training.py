"""Losses, corrections, reducers and advantages: their arrays and calls.

Arrays are views of memory that miles shares: torch tensors (f64) where torch can be imported,
otherwise numpy arrays, otherwise memoryviews.  Without torch a function returns derivatives
itself."""

import array
import inspect
import types

from miles import host

try:
    import torch
except ImportError:
    torch = None
try:
    import numpy
except ImportError:
    numpy = None

FIRST = 4096  # bytes before the arrays


def view(offset, n):
    """The numbers at an offset."""
    at = FIRST + 8 * offset
    if n == 0:
        return torch.empty(0, dtype=torch.float64) if torch else numpy.empty(0) if numpy else memoryview(array.array("d"))
    if torch:
        return torch.frombuffer(host.shared, dtype=torch.float64, count=n, offset=at)
    if numpy:
        return numpy.frombuffer(host.shared, dtype=numpy.float64, count=n, offset=at)
    return memoryview(host.shared)[at : at + 8 * n].cast("d")


def store(offset, n, values, what):
    """Writes numbers at an offset."""
    if values is None:
        values = [0.0] * n
    if hasattr(values, "detach"):
        values = values.detach().to("cpu", torch.float64).reshape(-1)
    if len(values) != n:
        raise ValueError(f"the {what} of a sample have {len(values)} numbers; expected {n}")
    if n == 0:
        return
    if torch and isinstance(values, torch.Tensor):
        view(offset, n).copy_(values)
    else:
        at = FIRST + 8 * offset
        memoryview(host.shared)[at : at + 8 * n].cast("d")[:] = array.array("d", (float(v) for v in values))


class Logits:
    """Stands for the model's logits: log-probs and entropies of the answers are known."""

    def __init__(self, log_probs, entropy):
        self.log_probs, self.entropy = log_probs, entropy

    def sum(self):
        return sum(x.sum() for x in self.log_probs)


KEYS = ("loss_masks", "log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs", "values", "advantages")
KEYS += ("returns", "kl", "opd_reverse_kl", "weights", "kept_masks")


def columns(samples, name):
    """A column of all samples; None: the run does not have it."""
    if any(name not in s["columns"] for s in samples):
        return None
    return [view(s["columns"][name], s["n"]) for s in samples]


def batch_of(samples):
    """A training batch with the names of Miles."""
    batch = {name: columns(samples, name) for name in KEYS}
    batch["response_lengths"] = batch["total_lengths"] = [s["n"] for s in samples]
    batch["rewards"] = [s["reward"] for s in samples]
    batch["unconcat_tokens"], batch["max_seq_lens"] = None, None
    return batch


def dot(x, mask):
    return (x * mask).sum() if hasattr(x, "sum") else sum(a * b for a, b in zip(x, mask))


def number(x):
    return float(x.detach() if hasattr(x, "detach") else x)


def gradient(loss, leaves):
    """Derivatives of the loss, zeros where it does not depend on a leaf."""
    if not loss.requires_grad:
        return [None for _ in leaves]
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def make_loss(fn):
    """fn(args, batch, logits, sum_of_sample_mean): loss and metrics; without torch also the
    derivatives with respect to the log-probs and, if it has any, to the entropies."""
    return lambda call: run_loss(fn, call)


def run_loss(fn, call):
    s = call["sample"]
    n, divisor = s["n"], call["divisor"]
    batch = batch_of([s])
    mask = batch["loss_masks"][0]
    now, entropy = view(s["columns"]["train_log_probs"], n), view(s["columns"]["entropy"], n)
    leaves = [x.requires_grad_() for x in (now, entropy)] if torch else None
    batch["train_log_probs"], batch["entropy"] = [now], [entropy]

    def sum_of_sample_mean(x):
        return dot(x, mask) / divisor

    out = fn(host.args, batch, Logits([now], [entropy]), sum_of_sample_mean)
    if torch:
        if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[0], torch.Tensor):
            raise TypeError("the loss function returned no pair (loss, metrics) with a tensor")
        d_now, d_entropy = gradient(out[0], leaves)
    else:
        if not isinstance(out, tuple) or len(out) not in (3, 4):
            raise TypeError("without torch, a loss function returns (loss, metrics, d_log_probs[, d_entropy])")
        d_now, d_entropy = out[2], out[3] if len(out) == 4 else None
    store(s["d_log_probs"], n, d_now, "derivatives")
    store(s["d_entropy"], n, d_entropy, "derivatives")
    return {"loss": number(out[0]), "metrics": {k: number(v) for k, v in out[1].items()}}


class Model:
    """The model of a train step, for hooks: what they change about its gradients and loss.
    Patterns are shell patterns of the names of parameters."""

    def __init__(self):
        self.grads, self.loss = [], None

    def scale_grads(self, pattern, scale):
        """Multiplies gradients; 0 masks them."""
        self.grads.append({"pattern": pattern, "scale": float(scale)})

    def clip_grads(self, pattern, max_norm):
        """Limits the norm of these gradients, all of them together."""
        self.grads.append({"pattern": pattern, "max_norm": float(max_norm)})

    def add_loss(self, fn):
        """A further loss of each sample, with the signature of --custom-loss-function-path."""
        self.loss = is_plain(fn)


class Optimizer:
    """Learning rate, weight decay and limit of the norm of a train step."""

    def __init__(self, event):
        self.param_groups = [{"lr": event["lr"], "weight_decay": event["weight_decay"]}]
        self.config = types.SimpleNamespace(lr=event["lr"], clip_grad=event["clip_grad"])


def step_changes(model, optimizer, metrics):
    """What miles takes over from them."""
    group = optimizer.param_groups[0]
    return {
        "lr": float(group["lr"]),
        "weight_decay": float(group["weight_decay"]),
        "clip_grad": float(optimizer.config.clip_grad),
        "grads": model.grads,
        "adds_loss": model.loss is not None,
        "metrics": metrics,
    }


def ones(n):
    return torch.ones(n, dtype=torch.float64) if torch else numpy.ones(n) if numpy else array.array("d", [1.0] * n)


def split(flat, lengths):
    out, at = [], 0
    for n in lengths:
        out.append(flat[at : at + n])
        at += n
    return out


def make_correction(fn):
    """fn(*, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths,
    response_lengths, parallel_state, max_seq_lens): the loss times its weights, masks, metrics.
    It gets a loss of ones, so that what it returns are the weights."""

    def answer(call):
        samples = call["samples"]
        batch = batch_of(samples)
        lengths = batch["response_lengths"]
        names = ("loss_masks", "total_lengths", "response_lengths", "rollout_log_probs", "max_seq_lens")
        given = {name: batch[name] for name in names}
        given.update(args=host.args, train_log_probs=batch["log_probs"], parallel_state=ParallelState())
        weights, masks, metrics = fn(pg_loss=ones(sum(lengths)), **given)
        for s, w, m in zip(samples, split(weights, lengths), masks):
            store(s["out_weights"], s["n"], w, "weights")
            store(s["out_masks"], s["n"], m, "masks")
        rows = [{} for _ in samples]
        for name, value in metrics.items():
            value = split(value, lengths) if not isinstance(value, (list, tuple)) else value
            for row, v, mask in zip(rows, value, batch["loss_masks"]):
                row[name] = number(dot(v, mask))
        return {"metrics": rows}

    return answer


def make_reducer(fn):
    """fn(total_lengths, response_lengths, loss_masks, calculate_per_token_loss): a linear
    function from the losses of all tokens to a number."""

    def answer(call):
        batch = batch_of(call["samples"])
        lengths, masks = batch["response_lengths"], batch["loss_masks"]
        reduce = fn(batch["total_lengths"], lengths, masks, call["per_token"])
        divisors = []
        for i, mask in enumerate(masks):
            x = ones(sum(lengths))
            at = sum(lengths[:i])
            for t in range(len(x)):
                x[t] = 1.0 if at <= t < at + lengths[i] else 0.0
            share, n = number(reduce(x)), number(dot(ones(lengths[i]), mask))
            if n and not share:
                raise ValueError("the reducer gives a sample with trained tokens no weight")
            divisors.append(n / share if n else 1.0)
        return {"divisors": divisors}

    return answer


def make_advantage(fn):
    """fn(args, rollout_data): advantages and returns, a list with an array for each sample."""

    def answer(call):
        samples = call["samples"]
        out = fn(host.args, batch_of(samples))
        if not isinstance(out, tuple) or len(out) != 2 or any(len(x) != len(samples) for x in out):
            raise TypeError("the function returned no pair (advantages, returns) with an array for each sample")
        for s, a, r in zip(samples, *out):
            store(s["out_advantages"], s["n"], a, "advantages")
            store(s["out_returns"], s["n"], r, "returns")
        return {}

    return answer


class ParallelState:
    """A single rank: functions see whole samples."""

    def __getattr__(self, name):
        if name.endswith("size"):
            return 1
        if name.endswith("rank"):
            return 0
        if name.endswith("group"):
            return None
        if name in ("tp", "cp", "dp", "pp", "intra_dp", "intra_dp_cp"):
            return self
        raise AttributeError(name)


def is_plain(fn):
    if inspect.iscoroutinefunction(fn):
        raise TypeError("an async function; a plain one is required")
    return fn
