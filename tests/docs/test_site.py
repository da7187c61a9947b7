"""The site builds without a warning or a network, has what it points at, and has the whole API."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

import pytest

from tests.test_house import ROOMS

from .pages import DOCS, ROOT

pytest.importorskip("zensical")

NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer: whoever asks the network fails."""

INSIDE = {"cli", "__main__"}
"""Rooms that have no public names to document."""


class Page(NamedTuple):
    """What an HTML page points at, and what can be pointed at in it."""

    links: list[str]
    loaded: list[str]
    """Scripts, styles, fonts, pictures: what a browser gets without being asked."""
    anchors: set[str]


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.page = Page([], [], set())

    def handle_starttag(self, tag, attrs):
        given = {name: value for name, value in attrs if value}
        self.page.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.page.loaded.append(given["href"])
        elif "src" in given:
            self.page.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, of a copy: building writes beside its sources."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    (folder / "gpld").symlink_to(ROOT / "gpld")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE)
    done = subprocess.run(
        command, cwd=folder, env=os.environ | proxies, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    found = {}
    for path in sorted(site.rglob("*.html")):
        reader = Reader()
        reader.feed(path.read_text())
        found[path.relative_to(site)] = reader.page
    return found


def is_elsewhere(target):
    return re.match(r"[a-z]+:|//", target) is not None


def test_nothing_is_loaded_from_a_network(site, pages):
    loaded = [(str(name), target) for name, page in pages.items() for target in page.loaded]
    assert len(loaded) > len(pages)
    assert [found for found in loaded if is_elsewhere(found[1])] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", styles) == []


def test_links_anchors_and_pictures_lead_somewhere(site, pages):
    missing = []
    for name, page in pages.items():
        if name.name == "404.html":  # its links begin at the root of wherever the site is
            continue
        for target in filter(lambda target: not is_elsewhere(target), [*page.links, *page.loaded]):
            path, anchor = urldefrag(target)
            file = Path(os.path.normpath(name.parent / unquote(path))) if path else name
            file = file / "index.html" if (site / file).is_dir() else file
            known = not anchor or file not in pages or unquote(anchor) in pages[file].anchors
            if not (site / file).is_file() or not known:
                missing.append(f"{name}: {target}")
    assert missing == []


def test_every_page_is_in_the_menu(site, pages):
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    links = {Path(os.path.normpath(urldefrag(link)[0])) for link in pages[Path("index.html")].links}
    assert written <= pages.keys()
    assert written - links <= {Path("index.html")}


def public_names():
    """Dotted names of what rooms offer: what `__init__` imports, or all of a module that is a room."""
    for room in sorted(set(ROOMS) - INSIDE):
        module = ROOT / "gpld" / f"{room}.py"
        if module.exists():
            names = [
                node.name
                for node in ast.parse(module.read_text()).body
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"
            ]
        else:
            tree = ast.parse((ROOT / "gpld" / room / "__init__.py").read_text())
            imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
            names = [alias.asname or alias.name for node in imports for alias in node.names]
        yield from (f"gpld.{room}.{name}" for name in names)


def test_the_reference_has_every_public_name(site):
    # Sphinx's format: four lines of text, then lines that begin with a name.
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split(" ", 1)[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert len(documented) > 300
    assert [name for name in public_names() if name not in documented] == []
