"""Strict arithmetic for every test, and one compilation cache for all of them."""

from pathlib import Path

import jax

# Silent promotion hides bugs: a missing axis or a stray float64 must fail here, not slow a run down.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
