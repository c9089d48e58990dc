"""Sessions of agents."""
