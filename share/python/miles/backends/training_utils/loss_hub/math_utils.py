"""Parts of the policy loss, with torch."""

import torch


def compute_approx_kl(log_probs, log_probs_base, kl_loss_type="k1", importance_ratio=None):
    """Estimates of KL(p || base) from drawn tokens: k1, k2, k3, and k3 within bounds."""
    ratio = log_probs.double() - log_probs_base.double()
    if kl_loss_type == "k1":
        kl = ratio
    elif kl_loss_type == "k2":
        kl = ratio**2 / 2
    elif kl_loss_type in ("k3", "low_var_kl"):
        kl = torch.expm1(-ratio) + ratio
    else:
        raise ValueError(f"there is no KL estimate {kl_loss_type}")
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return torch.clamp(kl, -10, 10) if kl_loss_type == "low_var_kl" else kl


def compute_policy_loss(ppo_kl, advantages, eps_clip, eps_clip_high, eps_clip_c=None):
    """PPO's clipped loss of each token, with dual clip if eps_clip_c is given, and where it clips."""
    ratio = (-ppo_kl).exp()
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss, share = torch.maximum(plain, clipped), (clipped > plain).double()
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(-eps_clip_c * advantages, loss), loss)
    return loss, share
