"""The tutorial's notebook is its page, runs from its first cell to its last, and prints what it says."""

import io
import json
from contextlib import redirect_stdout

import pytest

from tests import scripts

from .pages import DOCS, ROOT, blocks

CELLS = json.loads((ROOT / "examples" / "tutorial.ipynb").read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_is_the_page():
    assert scripts.load("scripts/notebook.py").main(["--check"]) == 0
    page = blocks(DOCS / "tutorial.md")
    assert ["".join(cell["source"]) + "\n" for cell in CODE] == [
        b.code for b in page if b.language == "python"
    ]
    assert sum(len(cell["outputs"]) for cell in CODE) == sum(block.language == "text" for block in page)


@pytest.mark.slow
def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for cell in CODE:
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(cell["source"], cell["id"], "exec"), namespace)
        for expected in cell["outputs"]:
            assert output.getvalue() == expected["text"]
    assert (tmp_path / "tutorial" / "curve.png").read_bytes().startswith(b"\x89PNG")
