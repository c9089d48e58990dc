"""Helpers of generate functions."""
