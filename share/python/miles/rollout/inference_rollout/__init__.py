"""Class-based rollout functions."""
