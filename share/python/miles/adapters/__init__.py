"""Environments of other packages as generate functions."""
