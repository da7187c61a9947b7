"""Write examples/tutorial.ipynb, the notebook of docs/tutorial.md.

    python scripts/notebook.py            # rewrite it
    python scripts/notebook.py --check    # fail if it is stale

Blocks of `python` are its cells, and blocks of `text` below them their output. `make test-full` executes it.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


def cells(text: str) -> list[dict[str, Any]]:
    """The cells of a page, in order."""
    found: list[dict[str, Any]] = []
    for part in re.split(r"(^```\w+\n.*?^```$)", text, flags=re.S | re.M):
        fence = re.fullmatch(r"```(\w+)\n(.*?)```", part, re.S)
        kind, source = (fence[1], fence[2].rstrip("\n")) if fence else ("markdown", part.strip())
        about = {"id": f"cell-{len(found)}", "metadata": {}, "source": source}
        if kind == "python":
            found.append({"cell_type": "code", "execution_count": None, "outputs": [], **about})
        elif kind == "text":
            found[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"{source}\n"}]
        elif source:
            # Links between pages lead nowhere from a notebook.
            plain = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", source)
            found.append({"cell_type": "markdown", **about, "source": plain})
    return found


def notebook() -> str:
    """The notebook as JSON."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    written = {"cells": cells(PAGE.read_text()), "metadata": {"kernelspec": kernel}}
    return json.dumps({**written, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write it, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    if parser.parse_args(arguments).check:
        return int(NOTEBOOK.read_text() != notebook())
    NOTEBOOK.write_text(notebook())
    return 0


if __name__ == "__main__":
    sys.exit(main())
