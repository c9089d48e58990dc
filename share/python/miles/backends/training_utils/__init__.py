"""What losses import."""
