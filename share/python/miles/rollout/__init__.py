"""Rollouts, rewards and filters."""
