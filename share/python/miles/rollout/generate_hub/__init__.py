"""Generate functions."""
