"""Context parallelism: a function sees whole samples."""

from miles.training import dot, split


def all_gather_with_cp(tensor, total_length, response_length, *args, **kwargs):
    return tensor


def slice_log_prob_with_cp(log_prob, total_length, response_length, *args, **kwargs):
    return log_prob


def get_local_response_loss_masks(total_lengths, response_lengths, loss_masks, *args, **kwargs):
    return loss_masks


def get_sum_of_sample_mean(
    total_lengths, response_lengths, loss_masks, calculate_per_token_loss=False, *args, denominators=None, **kwargs
):
    """The sum over samples of their means, or of all tokens."""

    def reduce(x):
        total = 0.0
        for i, (part, mask) in enumerate(zip(split(x, response_lengths), loss_masks)):
            n = 1 if calculate_per_token_loss else denominators[i] if denominators else max(float(mask.sum()), 1)
            total = total + dot(part, mask) / n
        return total

    return reduce
