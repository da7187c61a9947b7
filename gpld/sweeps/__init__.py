"""Sweeps: runs of every combination of some options' values, compared; the worse half may be stopped."""
