"""What pages refer to is there: messages of the code, files, tests."""

import ast
import re

import pytest

from .pages import DOCS, ROOT, blocks

GAP = "…"
"""In messages on pages, what the code fills in."""


def literals():
    """All strings of the code, with gaps for what is filled in; and the Makefile."""
    for path in (ROOT / "gpld").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
                yield "".join(map(str, parts))
    yield (ROOT / "Makefile").read_text()


MESSAGES = [block.code.strip() for block in blocks(DOCS / "troubleshooting.md") if block.language == "text"]


@pytest.fixture(scope="module")
def code():
    return "\n".join(literals())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda text: text[:40])
def test_messages_are_those_of_the_code(message, code):
    assert message in code


def test_a_message_that_the_code_does_not_have_is_noticed(code):
    assert "out: … holds a run with other options" in code
    assert "out: … holds a run with different options" not in code


def test_files_that_pages_name_exist():
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = set(re.findall(r"`((?:gpld|tests|examples|benchmarks|scripts|results)/[\w/.]+)`", text))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["promises", "determinism"])
def test_every_promise_names_a_test_that_exists(page):
    text = (DOCS / f"{page}.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) == len(re.findall(r"^\d+\. ", text, re.M)) == 10
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name
