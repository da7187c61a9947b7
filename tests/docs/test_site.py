"""The site builds without a warning or a network, has what it points at, and has the whole API."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

import pytest

from tests.scripts import load
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


def build(folder):
    """The site, built of a copy: building writes beside its sources."""
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    (folder / "gpld").symlink_to(ROOT / "gpld")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE)
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | proxies | {"PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return folder / "site"


def read(path):
    reader = Reader()
    reader.feed(path.read_text())
    return reader.page


def is_elsewhere(target):
    return re.match(r"[a-z]+:|//", target) is not None


def from_a_network(site, pages):
    """What pages and styles load from other sites."""
    loaded = [target for page in pages.values() for target in page.loaded]
    assert len(loaded) > len(pages)
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    imports = re.findall(r"@import[^;]*|url\(\s*[\"']?(?:https?:)?//[^)]*", styles)
    return [*filter(is_elsewhere, loaded), *imports]


def leading_nowhere(site, pages):
    """Links, anchors and pictures that are not there."""
    for name, page in pages.items():
        if name.name == "404.html":  # its links begin at the root of wherever the site is
            continue
        for target in filter(lambda target: not is_elsewhere(target), [*page.links, *page.loaded]):
            path, anchor = urldefrag(target)
            file = Path(os.path.normpath(name.parent / unquote(path))) if path else name
            file = file / "index.html" if (site / file).is_dir() else file
            known = not anchor or file not in pages or unquote(anchor) in pages[file].anchors
            if not (site / file).is_file() or not known:
                yield f"{name}: {target}"


def not_in_the_menu(pages):
    """Pages that were written, and that the first page does not lead to."""
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    links = {Path(os.path.normpath(urldefrag(link)[0])) for link in pages[Path("index.html")].links}
    return written - links - {Path("index.html")}


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


def undocumented(site):
    """Public names that the reference does not have."""
    # Sphinx's format: four lines of text, then packed lines that begin with a name.
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split(" ", 1)[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert len(documented) > 300
    return [name for name in public_names() if name not in documented]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("docs"))


def test_the_site(site):
    pages = {path.relative_to(site): read(path) for path in sorted(site.rglob("*.html"))}
    assert from_a_network(site, pages) == []
    assert list(leading_nowhere(site, pages)) == []
    assert not_in_the_menu(pages) == set()
    assert undocumented(site) == []


RESULTS = """
const within = (x) => [x, ...(x.shadowRoot ? inside(x.shadowRoot) : [])];
const inside = (node) => [...node.querySelectorAll("*")].flatMap(within);
const texts = inside(document).filter((x) => !x.children.length).map((x) => x.textContent);
return texts.find((text) => /^\\d+ results?$/.test(text));
"""
"""How many results the search shows."""


@pytest.mark.slow
def test_search_works_from_the_disk(site):
    pytest.importorskip("selenium")
    if not shutil.which("chromedriver"):
        pytest.skip("needs Chromium's driver")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    with load("scripts/screenshots.py").open_browser() as browser:
        browser.set_window_size(1280, 860)
        browser.get(f"file://{site / 'api' / 'config.html'}")
        button = (By.CSS_SELECTOR, ".md-search__button")
        WebDriverWait(browser, 20).until(lambda browser: browser.find_element(*button).is_displayed())
        browser.find_element(*button).click()
        time.sleep(1)
        browser.switch_to.active_element.send_keys("write_back")
        found = WebDriverWait(browser, 20).until(lambda browser: browser.execute_script(RESULTS))
    assert int(found.split()[0]) in range(1, 30)


def test_what_leads_nowhere_is_found(tmp_path):
    (tmp_path / "there.html").write_text('<p id="here"><a href="there.html#here"><img src="no.png">')
    (tmp_path / "index.html").write_text('<a href="there.html#gone"></a><a href="gone.html"></a>')
    (tmp_path / "style.css").write_text("@font-face { src: url(//fonts.example/a.woff) }")
    pages = {Path(name): read(tmp_path / name) for name in ("there.html", "index.html")}
    found = ["there.html: no.png", "index.html: there.html#gone", "index.html: gone.html"]
    assert list(leading_nowhere(tmp_path, pages)) == found
    loading = Page([], ["https://cdn.example/a.js", "b.js"], set())
    assert len(from_a_network(tmp_path, {Path("index.html"): loading})) == 2
