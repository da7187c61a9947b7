"""The tutorial runs from its first block to its last, and prints what it says."""

import io
from contextlib import redirect_stdout
from itertools import pairwise

import pytest

from .pages import DOCS, blocks


@pytest.mark.slow
def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = blocks(DOCS / "tutorial.md")
    namespace, checked = {}, 0
    for code, then in pairwise([*parts, parts[0]]):
        if code.language != "python":
            continue
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(code.code, code.name, "exec"), namespace)
        if then.language == "text":
            assert output.getvalue() == then.code
            checked += 1
    assert checked == sum(part.language == "text" for part in parts)
    assert (tmp_path / "tutorial" / "curve.png").read_bytes().startswith(b"\x89PNG")
