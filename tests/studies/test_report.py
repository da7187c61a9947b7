"""The report in a browser: it opens, draws, toggles, sorts and plays, without a word on the console."""

import io
import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from gpld.results import read_tables
from gpld.studies import write_report
from tests.studies.helpers import small

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
REPOSITORY = Path(__file__).parents[2]
HERE = bool(CHROMIUM and DRIVER)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HERE, reason="needs Debian's chromium and chromium-driver"),
]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    # No sandbox: tests may run as root. No GPU, no network.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, smoke):
    browser.set_window_size(1200, 1600)
    browser.get(f"file://{smoke / 'report.html'}")
    yield browser
    assert browser.get_log("browser") == []


def find(page, selector):
    return page.find_elements("css selector", selector)


def click(page, selector):
    (element,) = find(page, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def colourful(picture, element, more_than=10):
    """Whether a picture of the whole page has many colours where an element is."""
    place = element.rect
    corner = place["x"] + place["width"], place["y"] + place["height"]
    return picture.crop((place["x"], place["y"], *corner)).getcolors(more_than) is None


def test_every_panel_shows_something(page, smoke):
    films = len([*smoke.rglob("film.png"), *smoke.rglob("open-loop.png")])
    assert len(find(page, "#charts .chart")) == 2
    assert len(find(page, "#sensitivity .chart")) == 2 * 2
    assert len(find(page, "#quality .chart")) == 2 * 3
    assert len(find(page, ".film")) == films
    assert len(find(page, "table.sortable")) == 9
    page.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    panels = find(page, ".panel, #summary, #configs, #environment")
    assert len(panels) == 12 + films + 9 + 3
    page.set_window_size(1200, page.execute_script("return document.documentElement.scrollHeight") + 200)
    picture = Image.open(io.BytesIO(page.get_screenshot_as_png())).convert("RGB")
    for panel in panels:
        assert panel.size["height"] > 40
        assert colourful(picture, panel), panel.text


def test_methods_tasks_and_seeds_are_toggled(page):
    assert len(find(page, "#charts .mean")) == 4
    click(page, '#methods [data-name="DreamerV3"]')
    assert len(find(page, "#charts .mean")) == 2
    click(page, '#tasks [data-name="cartpole-balance"]')
    assert [chart.get_attribute("data-task") for chart in find(page, "#charts .chart")] == [
        "cartpole-swingup"
    ]
    assert {chart.get_attribute("data-task") for chart in find(page, "#quality .chart")} == {
        "cartpole-swingup"
    }
    assert len(find(page, "#quality .mean")) == 3
    assert find(page, "#charts .seed") == []
    click(page, "#seeds")
    assert len(find(page, "#charts .seed")) == 2
    click(page, '#runs [data-name="1"]')
    assert len(find(page, "#charts .seed")) == 1
    click(page, '#tasks [data-name="cartpole-swingup"]')
    assert find(page, ".chart") == []
    assert "No task is chosen." in find(page, "#charts")[0].text


def test_curves_are_drawn_by_wall_clock_too(page):
    before = find(page, "#charts .mean")[0].get_attribute("d")
    click(page, '#axis option[value="seconds"]')
    assert find(page, "#charts .mean")[0].get_attribute("d") != before
    assert "wall-clock" in find(page, ".chart")[0].text


def test_pointing_at_a_chart_reads_its_values(page):
    chart = find(page, ".chart svg")[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    webdriver.ActionChains(page).move_to_element(chart).perform()
    (tip,) = find(page, "#tip")
    assert tip.is_displayed()
    lines = tip.text.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["DreamerV3", "GPLD-DreamerV3"]
    assert all("(2 seeds)" in line for line in lines)


@pytest.mark.parametrize(("section", "axis"), [("sensitivity", "env steps"), ("quality", "steps ahead")])
def test_what_was_measured_is_drawn_for_each_method(page, section, axis):
    first = find(page, f"#{section} .chart")[0]
    means = first.find_elements("css selector", ".mean")
    assert len(means) == 2
    # Two checkpoints, or 25 steps ahead.
    assert {mean.get_attribute("d").count("L") for mean in means} == {1 if section == "sensitivity" else 24}
    assert axis in first.text
    svg = first.find_element("css selector", "svg")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    webdriver.ActionChains(page).move_to_element(svg).perform()
    (tip,) = find(page, "#tip")
    assert [line.partition(":")[0] for line in tip.text.splitlines()] == ["DreamerV3", "GPLD-DreamerV3"]


def test_curves_of_others_are_thin_and_say_their_bounds(browser, tmp_path):
    plan = small(env_steps=[200_000], compare=["peers"])
    plan.write(tmp_path)
    browser.set_window_size(1200, 1600)
    browser.get(f"file://{write_report(tmp_path)}")
    charts = find(browser, "#charts .chart")
    assert [chart.get_attribute("data-task") for chart in charts] == ["cartpole-balance", "walker-walk"]
    assert len(find(browser, "#charts .mean.other")) == len(find(browser, "#charts .band.other")) == 2
    svg = charts[1].find_element("css selector", "svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    webdriver.ActionChains(browser).move_to_element(svg).perform()
    (tip,) = find(browser, "#tip")
    assert tip.text == "DreamerV3 (others' runs): 217.7 (164.6 to 270.9) at 100k"
    click(browser, """#methods [data-name="DreamerV3 (others' runs)"]""")
    assert find(browser, "#charts .mean.other") == []
    assert browser.get_log("browser") == []


def test_tables_are_sorted_and_totals_stay_last(page):
    def rows():
        body = find(page, "table.sortable tbody")[0]
        return [row.text for row in body.find_elements("css selector", "tr")]

    before = rows()
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", find(page, "table.sortable")[0])
    second = find(page, "table.sortable thead")[0].find_elements("css selector", "button")[1]
    second.click()
    down = rows()
    second.click()
    up = rows()
    assert down[:2] == up[:2][::-1]
    assert before[2:] == down[2:] == up[2:]
    assert up[0].startswith("cartpole-swingup")  # scores less


def test_charts_and_tables_are_saved(page):
    """What a click would save: the blob, as text or by its first bytes."""
    page.execute_script("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; };")

    def saved(selector):
        page.execute_script("window.saved = null; arguments[0].click()", find(page, selector)[0])
        return page.execute_async_script(
            "const [done] = arguments, wait = () => (window.saved ? window.saved.text().then(done)"
            " : setTimeout(wait, 20)); wait();"
        )

    rows = saved("#charts .chart [title='save as CSV']").splitlines()
    assert rows[0] == "method,env steps,mean,low,high"
    assert {row.partition(",")[0] for row in rows[1:]} == {"DreamerV3", "GPLD-DreamerV3"}
    drawing = saved("#charts .chart [title='save as SVG']")
    assert drawing.startswith("<svg")
    assert "GPLD-DreamerV3" in drawing
    assert "PNG" in saved("#charts .chart [title='save as PNG']")[:8]
    table = saved("#scores [title='save as CSV']").splitlines()
    assert table[0] == "task,DreamerV3,GPLD-DreamerV3,gain of GPLD-DreamerV3"
    assert find(page, "#scores details[open]")  # saving did not close it


def test_films_are_played(page):
    if not find(page, ".film .play"):
        pytest.skip("this machine cannot draw")
    image, video, button = (find(page, f".film {part}")[0] for part in ("img", "video", ".play"))
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    assert image.get_attribute("src").startswith("data:image/png")
    assert (image.is_displayed(), video.is_displayed()) == (True, False)
    button.click()
    assert (image.is_displayed(), video.is_displayed()) == (False, True)
    for _ in range(50):
        seconds, *size = page.execute_script(
            "const [video] = arguments; return [video.currentTime, video.videoWidth, video.videoHeight]",
            video,
        )
        if seconds > 0:
            break
        time.sleep(0.1)
    assert seconds > 0
    assert size == [320, 240]
    button.click()
    assert (image.is_displayed(), video.is_displayed()) == (True, False)


def test_options_of_two_runs_are_compared(page):
    def keys():
        return [cell.text for cell in find(page, "#diff tbody tr td:first-child")]

    assert keys() == ["agent.penalty.posterior"]  # DreamerV3 against GPLD, the same seed
    click(page, "#right option:nth-child(3)")
    assert keys() == ["seed"]
    click(page, "#right option:nth-child(1)")
    assert keys() == ["Nothing: they have the same options."]


def test_there_is_a_dark_and_a_light_page(page):
    def ground():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    before = ground()
    click(page, "#theme")
    assert ground() != before
    assert {before, ground()} == {"rgb(247, 248, 250)", "rgb(20, 23, 27)"}


def test_it_fits_a_phone_and_paper(page):
    page.set_window_size(500, 900)  # the narrowest that Chromium's window gets
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    assert page.execute_script("return document.documentElement.scrollWidth") <= 360
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not any(box.is_displayed() for box in find(page, ".controls"))
    assert find(page, ".chart")[0].is_displayed()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_page_about_any_runs_and_about_none(browser, smoke, tmp_path):
    browser.get(f"file://{write_report(smoke / 'runs' / 'cartpole-balance', tmp_path / 'runs.html')}")
    assert [len(find(browser, f"{place} .chart")) for place in ("#charts", "#sensitivity", "#quality")] == [
        1,
        2,
        3,
    ]
    assert "4 runs on cartpole-balance." in browser.page_source
    empty = tmp_path / "begun" / "run"
    empty.mkdir(parents=True)
    shutil.copy(smoke / "runs" / "cartpole-balance" / "DreamerV3" / "seed0" / "config.json", empty)
    browser.get(f"file://{write_report(tmp_path / 'begun')}")
    shown = [heading.text for heading in find(browser, "h2") if heading.is_displayed()]
    assert shown == []  # one run, nothing measured: the page says so, and shows no empty part
    assert "There is no evaluation yet." in find(browser, "#summary")[0].text
    assert browser.get_log("browser") == []


def test_committed_results_are_a_page(browser, tmp_path, monkeypatch):
    """As in a clean clone on a machine without a GPU: nothing has been run there."""
    monkeypatch.chdir(tmp_path)
    browser.set_window_size(1200, 1600)
    browser.get(f"file://{write_report('locomotion-short', tmp_path / 'page.html')}")
    gain, runs = find(browser, ".tile")
    assert "GPLD-DreamerV3's score against DreamerV3's" in gain.text
    committed = read_tables(REPOSITORY / "results/locomotion-short").runs
    assert runs.text.startswith(f"{len(committed)} of 48")
    shown = {chart.get_attribute("data-task") for chart in find(browser, "#charts .chart[data-task]")}
    assert shown == {run.task for run in committed}
    (chart,) = [chart for chart in find(browser, "#charts .chart") if "walker-run" in chart.text]
    assert len(chart.find_elements("css selector", ".mean")) == 3  # DreamerV3, GPLD, and others' DreamerV3
    assert len(find(browser, "#sensitivity .chart")) >= 2
    assert "NVIDIA H200" in find(browser, "#environment")[0].text
    assert browser.get_log("browser") == []
