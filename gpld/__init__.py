"""GPLD-DreamerV3."""
