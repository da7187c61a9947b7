"""What people read, and the code and commands in it."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(set(DOCS.rglob("*.md")) - {DOCS / "index.md"}),  # which is the README
    *sorted((ROOT / "results").glob("*.md")),
]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.S | re.M)
_PROGRAMS = r"(?:\S*/bin/)?(?:gpld|python|pip|zensical|pytest|pre-commit)|make|srun|apt"


class Block(NamedTuple):
    """Fenced code."""

    page: str
    line: int
    language: str
    code: str

    @property
    def name(self) -> str:
        """How tests call it."""
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """A line that a reader may type."""

    page: str
    text: str


def text_of(page: Path) -> str:
    """A page as it is written."""
    return page.read_text()


def blocks(page: Path) -> list[Block]:
    """All fenced code of a page."""
    text = text_of(page)
    return [
        Block(_name(page), text.count("\n", 0, found.start()) + 1, found[2], found[3])
        for found in _FENCE.finditer(text)
    ]


def commands(page: Path) -> list[Command]:
    """Fenced `sh`; indented lines and code in sentences, if they begin with a program's name."""
    text = text_of(page)
    fenced = [_joined(block.code) for block in blocks(page) if block.language == "sh"]
    sentences = _FENCE.sub("", text)
    indented = re.findall(rf"^    ((?:{_PROGRAMS})(?: .*)?)$", sentences, re.M)
    typed = [re.sub(r"\s+#.*", "", line).strip() for line in [*"\n".join(fenced).splitlines(), *indented]]
    spans = [span for span in re.findall(r"`([^`\n]+)`", sentences) if re.match(rf"(?:{_PROGRAMS}) \S", span)]
    return [Command(_name(page), line) for line in dict.fromkeys([*typed, *spans]) if line]


def _joined(code: str) -> str:
    return re.sub(r"\\\n\s*", "", code)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))
