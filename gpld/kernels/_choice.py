from gpld.config import AgentConfig, ConfigError
from gpld.kernels._tiles import Tile, interpreted


def chosen(config: AgentConfig, rows: int) -> bool:
    """Whether to use these kernels for steps of `rows` states."""
    if config.kernels == "plain":
        return False
    model = config.model
    widths = (model.deter // model.blocks, model.hidden, model.classes, model.stoch * model.classes)
    # Every tile's side is a power of two, and a matrix unit takes sixteen rows.
    fits = rows % 16 == 0 and model.posterior_layers == 1 and model.units == model.hidden
    fits &= all(width >= 16 and width & (width - 1) == 0 for width in widths)
    # Gradients by h and z are columns of one array, which tiles of z's width must divide.
    fits &= model.deter % (model.stoch * model.classes) == 0
    # A tile holds whole rows of classes, and bins in pairs about the one at zero.
    fits &= model.classes <= Tile().columns and model.bins & (model.bins + 1) == 0
    if config.kernels == "fused" and not fits:
        raise ConfigError(
            "agent.kernels: 'fused' needs powers of two from 16 for agent.model.deter over blocks, hidden, "
            f"classes and stoch times classes, the last a divisor of deter; at most {Tile().columns} "
            "classes, bins one less than a power of two, as many units as hidden, one posterior layer, and "
            f"batches that 16 divides; got {widths}, {model.deter} for deter, {model.bins} bins, "
            f"{model.units} units, {model.posterior_layers} layers and batches of {rows}. Take 'auto'"
        )
    return fits and (config.kernels == "fused" or (not interpreted() and config.compute == "bfloat16"))
