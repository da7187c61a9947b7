"""Named groups of options, applied over the defaults from left to right."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpld.config._options import Config
from gpld.config._tree import ConfigError, override, suggestion


class Preset(NamedTuple):
    """A line of description, and the options it sets as a nested dictionary."""

    description: str
    options: Mapping[str, Any]


def _size(deter: int, hidden: int, classes: int, units: int, depth: int) -> Mapping[str, Any]:
    model = {"deter": deter, "hidden": hidden, "classes": classes, "units": units, "depth": depth}
    return {"agent": {"model": model | {"stoch": 32, "blocks": 8, "bins": 255}}}


_NANO = {
    "agent": {
        "model": {"deter": 128, "hidden": 32, "stoch": 8, "classes": 8, "units": 32, "depth": 4, "bins": 63},
        "behavior": {"horizon": 15},
        "optimizer": {"learning_rate": 1e-3},
    },
    "env": {"count": 4},
    "replay": {"batch": 8, "length": 32, "train_ratio": 128.0},
}

# Smaller still, with shallow networks. An action lasts 8 env steps, so that an imagined rollout holds a
# swing-up, and the discount reaches twice as far.
_DEMO = {
    "env_steps": 96_000,
    "agent": {
        "model": {
            **_NANO["agent"]["model"],
            "deter": 64,
            "blocks": 1,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "prior_layers": 1,
            "policy_layers": 2,
            "value_layers": 2,
        },
        "behavior": {"horizon": 15, "discount_horizon": 30},
        "optimizer": {"learning_rate": 2e-3, "warmup": 100},
    },
    "env": {"count": 1, "action_repeat": 8},
    "replay": {"batch": 8, "length": 16, "min_steps": 250, "train_ratio": 128.0},
    "eval": {"every": 1000},
}

_ATARI = {
    "env_steps": 200_000_000,
    "agent": {"behavior": {"horizon": 15}},
    "env": {"action_repeat": 4},
    "replay": {"train_ratio": 32.0},
    "eval": {"every": 250_000},
}

_ATARI_100K = {
    "env_steps": 400_000,
    "agent": {"behavior": {"horizon": 15}},
    "env": {
        "count": 1,
        "action_repeat": 4,
        "kwargs": ("repeat_action_probability=0.0", "full_action_space=false"),
    },
    "replay": {"train_ratio": 256.0},
}

_CRAFTER = {
    "env_steps": 1_000_000,
    "agent": {"behavior": {"horizon": 15}},
    "env": {"count": 1, "action_repeat": 1},
    "replay": {"train_ratio": 512.0},
}

PRESETS: Mapping[str, Preset] = {
    "nano": Preset("0.1M parameters, small batches: an agent for a laptop", _NANO),
    "demo": Preset("60k parameters, 96k env steps: cartpole-swingup in minutes on two cores", _DEMO),
    "1m": Preset("DreamerV3's size 1M, 0.6M parameters from states", _size(512, 64, 4, 64, 4)),
    "12m": Preset(
        "the paper's size and the default, 9.7M parameters from states", _size(2048, 256, 16, 256, 16)
    ),
    "25m": Preset("DreamerV3's size 25M, 22M parameters from states", _size(3072, 384, 24, 384, 24)),
    "50m": Preset("DreamerV3's size 50M, 39M parameters from states", _size(4096, 512, 32, 512, 32)),
    "100m": Preset("DreamerV3's size 100M, 87M parameters from states", _size(6144, 768, 48, 768, 48)),
    "200m": Preset("DreamerV3's size 200M, 154M parameters from states", _size(8192, 1024, 64, 1024, 64)),
    "400m": Preset("DreamerV3's size 400M, 345M parameters from states", _size(12288, 1536, 96, 1536, 96)),
    "cpu": Preset("float32 arithmetic, short compilation", {"agent": {"compute": "float32", "unroll": 1}}),
    "gpu": Preset("bfloat16 arithmetic, unrolled scans", {"agent": {"compute": "bfloat16", "unroll": 8}}),
    "quadruped": Preset("the paper's quadruped tasks: 4M env steps", {"env_steps": 4_000_000}),
    "pixels": Preset("the suite from 64x64 images", {"env": {"pixels": True}}),
    "atari": Preset("DreamerV3's Atari for envpool:Pong-v5 and others: 200M env steps", _ATARI),
    "atari100k": Preset(
        "the same with 400k env steps, no sticky actions, and a game's own actions", _ATARI_100K
    ),
    "crafter": Preset("DreamerV3's Crafter for gym:gpld.envs.crafter:Crafter-v1: 1M env steps", _CRAFTER),
}


def with_presets(config: Config, names: Iterable[str]) -> Config:
    """`config` with presets applied from left to right."""
    for name in names:
        if name not in PRESETS:
            near = suggestion(name, PRESETS) or f"; allowed are {', '.join(PRESETS)}"
            raise ConfigError(f"preset: {name!r} is not a preset{near}")
        config = override(config, PRESETS[name].options)
    return config
