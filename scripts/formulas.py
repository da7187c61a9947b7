"""Formulas of the documentation as MathML, which browsers show without a script. mkdocs.yml names `show`."""

from typing import Any

from latex2mathml.converter import convert


def show(source: str, *_: Any, **__: Any) -> str:
    """The contents of a fence of `math`, LaTeX, as a block of MathML."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'
