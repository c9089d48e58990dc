"""Types and helpers."""
