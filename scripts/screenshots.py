"""Write the screenshots of docs/figures: the report about the committed runs, and the documentation's site.

    python scripts/screenshots.py

It needs Chromium with its driver (Debian: chromium, chromium-driver), and selenium from `make setup`.
The film and the figure of the README are written by `gpld eval RUN --dream` and `scripts/results_page.py`.
"""

import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver

from gpld.studies import write_report

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
STUDY = "locomotion-short"
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
    time.sleep(1)  # fonts and pictures
    return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")


def beside(left: Image.Image, right: Image.Image, gap: int = 24) -> Image.Image:
    """Two pictures of the same height side by side."""
    joined = Image.new("RGB", (left.width + gap + right.width, left.height), "#888888")
    joined.paste(left, (0, 0))
    joined.paste(right, (left.width + gap, 0))
    return joined


def save(picture: Image.Image, name: str) -> Path:
    """Save a picture with a palette of 128 colours, a fraction of its size."""
    path = FIGURES / f"{name}.png"
    picture.quantize(128).save(path, optimize=True)
    return path


def main() -> int:
    """Write all of them."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        report = write_report(STUDY, Path(folder) / "report.html")
        pictures = {
            "report": beside(take(browser, report, DESKTOP), take(browser, report, TELEPHONE, dark=True))
        }
        subprocess.run(
            [Path(sys.executable).with_name("zensical"), "build", "--strict"], cwd=ROOT, check=True
        )
        site = ROOT / "site"
        pictures["site"] = beside(
            take(browser, site / "index.html", DESKTOP),
            take(browser, site / "explain.html", TELEPHONE, dark=True),
        )
        for name, picture in pictures.items():
            path = save(picture, name)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
