"""Arrays computed by the reference implementation, and comparison with them."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gpld import agent, interop
from gpld.config import AgentConfig, BehaviorConfig, LossConfig, ModelConfig, PenaltyConfig
from gpld.types import Spaces

FOLDER = Path(os.environ.get("GPLD_GOLDEN", Path(__file__).parent / "golden"))


class Golden:
    """One file: `g["name"]` is an array, `g.under("param")` a dictionary of the arrays below a name."""

    def __init__(self, name: str):
        with np.load(FOLDER / f"{name}.npz") as file:
            self.arrays = {key: file[key] for key in file.files}

    def __getitem__(self, key: str):
        array = self.arrays[key]
        return jnp.asarray(array) if array.dtype.kind in "fiub" else array

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def scalar(self, key: str) -> float:
        return self.arrays[key].item()

    def under(self, prefix: str) -> dict:
        prefix += "/"
        return {key.removeprefix(prefix): self[key] for key in self.arrays if key.startswith(prefix)}

    def config(self, **behavior) -> AgentConfig:
        """The configuration a file was made with, as far as it says."""

        def get(key, default):
            return self.scalar(f"cfg/{key}") if f"cfg/{key}" in self else default

        value = self.arrays.get("param/val/head/logits/bias", self.arrays.get("bins", np.zeros(255)))
        return AgentConfig(
            model=ModelConfig(
                deter=get("deter", 0),
                hidden=get("hidden", 0),
                stoch=get("stoch", 0),
                classes=get("classes", 0),
                blocks=get("blocks", 0),
                units=get("units", 0),
                unimix=get("unimix", 0),
                prior_layers=get("imglayers", 0),
                posterior_layers=get("obslayers", 0),
                encoder_layers=get("enc_layers", 0),
                decoder_layers=get("dec_layers", 0),
                policy_layers=get("policy_layers", 3),
                value_layers=get("value_layers", 3),
                bins=len(value),
            ),
            loss=LossConfig(free_nats=get("free_nats", 1.0)),
            behavior=BehaviorConfig(min_std=get("minstd", 0.1), max_std=get("maxstd", 1.0), **behavior),
            penalty=PenaltyConfig(posterior=get("post_lam", 0.0), rho=get("sample_frac", 1.0)),
        )

    def spaces(self, obs: str) -> Spaces:
        """Spaces from the observations below `obs`, shaped [B, T, ...]."""
        flags = {"reward", "is_first", "is_last", "is_terminal"}
        shapes = {k: v.shape[2:] for k, v in self.under(obs).items() if k not in flags}
        return Spaces.of(shapes, self.actions)

    @property
    def actions(self) -> int:
        names = ("param/pol/head/action/mean/bias", "param/dyn/dynin2/kernel")
        return next((self.arrays[n].shape[0] for n in names if n in self.arrays), 3)

    def agent(self, config: AgentConfig, spaces: Spaces) -> agent.AgentState:
        """An agent with every parameter that the file has."""
        state = agent.init(config, spaces, jax.random.key(0))
        return interop.from_reference(state, self.under("param"), partial=True)


def swap(x):
    """[B, T, ...] to [T, B, ...] or back."""
    return jnp.swapaxes(x, 0, 1)


def assert_close(actual, expected, tolerance: float, name: str = ""):
    """Largest difference, relative to the largest entry of the expected array."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape}, expected {expected.shape}"
    scale = np.max(np.abs(expected), initial=0.0) or 1.0
    error = np.max(np.abs(actual - expected), initial=0.0) / scale
    assert error <= tolerance, f"{name}: relative error {error:.2e} over {tolerance:.0e}"
