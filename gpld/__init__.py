"""GPLD-DreamerV3: a world-model agent with smooth latent dynamics, in JAX.

Importing this package imports nothing else: JAX, environments and plotting come with the room that uses them.
"""

__version__ = "0.1.0"
