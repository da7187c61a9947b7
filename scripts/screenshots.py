"""Write the README's film and the screenshots in docs/figures: a report about committed runs, and the site.

    python scripts/screenshots.py
    python scripts/screenshots.py --out FOLDER    # to look at them first

It needs Chromium with its driver (Debian: chromium, chromium-driver), and selenium from `make setup`. The
film is that of `gpld eval cheetah-run@demo --dream --frames 40`; `scripts/results_page.py` draws the rest.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver

from gpld.films import film_dream
from gpld.studies import write_report

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
STUDY = "locomotion-short"
AGENT, STEPS = "cheetah-run@demo", 40
"""The agent of the film, which comes with the package, and how many of its steps are shown."""
DESKTOP, TELEPHONE = (1280, 860), (390, 860)


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


def take(browser: webdriver.Chrome, page: Path, size: tuple[int, int], *, dark: bool = False) -> Image.Image:
    """The first screen of a page."""
    theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"file://{page}")
    browser.execute_script("localStorage.clear()")  # the theme of an earlier picture
    browser.refresh()
    time.sleep(1)  # fonts and pictures
    return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")


def beside(left: Image.Image, right: Image.Image, gap: int = 24) -> Image.Image:
    """Two pictures of the same height side by side."""
    joined = Image.new("RGB", (left.width + gap + right.width, left.height), "#888888")
    joined.paste(left, (0, 0))
    joined.paste(right, (left.width + gap, 0))
    return joined


def film(out: Path) -> Path:
    """An agent beside the prediction of its world model."""
    with tempfile.TemporaryDirectory() as folder:
        made = film_dream(Path(AGENT), Path(folder), steps=STEPS)
        (gif,) = [path for path in made if path.suffix == ".gif"]
        return Path(shutil.copy(gif, out / gif.name))


def main(arguments: Sequence[str]) -> int:
    """Write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder of the pictures")
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    print(film(out))
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        report = write_report(STUDY, Path(folder) / "report.html")
        pictures = {
            "report": beside(take(browser, report, DESKTOP), take(browser, report, TELEPHONE, dark=True))
        }
        zensical = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
        formulas = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        subprocess.run(zensical, cwd=ROOT, env=formulas, check=True)
        site = ROOT / "site"
        pictures["site"] = beside(
            take(browser, site / "index.html", DESKTOP),
            take(browser, site / "explain.html", TELEPHONE, dark=True),
        )
        for name, picture in pictures.items():
            path = out / f"{name}.png"
            picture.save(path, optimize=True)
            print(f"{path}: {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
