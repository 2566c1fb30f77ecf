"""The report in a real browser: headless Chromium, driven by Selenium. Skipped where one is missing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import made_up_results as made_up
import pytest
from plot_programs import REPORT
from test_report import EVIL, blocks, with_floors_and_energy

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")
webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: chromium)"),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver is installed (Debian: chromium-driver)"),
]
SIZES = {"desk": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root in a container has none
        "--disable-dev-shm-usage",
        "--disable-gpu",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def full_results() -> dict:
    """Everything that a report can show, two failures, and a name that is a script."""
    results = made_up.with_losses(made_up.width_series(4, ("fp32", "fp16")), steps=400)
    with_floors_and_energy(results)
    results["workloads"][0]["ladders"] = {"fp32": made_up.ladder(), "fp16": made_up.ladder()}
    for index, record in enumerate(results["records"]):
        record["blocks"] = blocks(record["step_seconds"]["median"], index)
    results["records"][2] = made_up.failed(results["records"][2])
    alone = made_up.workload((64, 32, 10), name=EVIL)
    results["workloads"].append(alone)
    for backend, seconds in (("pytorch-eager", 9e-4), ("cuda-layered", 3e-5), ("libtorch-eager", 2.5e-3)):
        results["records"].append(made_up.record(EVIL, backend, "fp32", seconds))
    results["records"].append(made_up.record(EVIL, "cuda-resident", "fp32", None))
    return results


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "run.json").write_text(json.dumps(full_results()))
    command = [sys.executable, str(REPORT), str(folder / "run.json"), "-o", str(folder / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return folder / "out" / "report.html"


def opened(browser, page: Path, size: str, theme: str = "light"):
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get_log("browser")
    browser.get(page.as_uri())
    return browser


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_all_figures_are_visible_and_the_console_is_silent(browser, page, size, theme):
    opened(browser, page, size, theme)
    assert browser.get_log("browser") == []
    width = SIZES[size][0]
    figures = browser.execute_script(
        """return [...document.querySelectorAll(".panel svg")].map((svg) => {
             svg.scrollIntoView();
             const box = svg.getBoundingClientRect(), outer = svg.parentElement.getBoundingClientRect();
             const middle = box.left + Math.min(box.width, outer.width) / 2;
             const seen = document.elementFromPoint(middle, box.top + 5);
             const count = (what) => svg.querySelectorAll(what).length;
             return {left: outer.left, right: outer.right, width: box.width, height: box.height,
                     words: count("text"), lines: count("path"), seen: svg.contains(seen)};
           });"""
    )
    assert len(figures) > 20
    for figure in figures:
        assert 0 <= figure["left"] < figure["right"] <= width
        assert figure["width"] > 250 and figure["height"] > 60
        assert figure["words"] > 3 and figure["lines"] > 3
        assert figure["seen"]
    # The page itself does not scroll sideways: wide tables and figures do, inside themselves.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def text_sizes(browser) -> list[float]:
    return browser.execute_script(
        """return [...document.querySelectorAll(".panel svg text")].map((text) =>
             parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a || 99);"""
    )


def test_on_a_phone_nothing_is_cut_off(browser, page):
    opened(browser, page, "phone")
    cut = browser.execute_script(
        """for (const part of document.querySelectorAll("details")) part.open = true;
           return [...document.querySelectorAll(".panel, .table")]
             .filter((box) => box.scrollWidth > box.clientWidth + 1)
             .map((box) => box.className + " " + box.closest("section").id + " " + box.scrollWidth);"""
    )
    assert cut == []


def test_on_a_phone_each_field_of_a_table_stands_behind_its_columns_title(browser, page):
    opened(browser, page, "phone")
    titles, labels = browser.execute_script(
        """const table = document.getElementById("records-table");
           const label = (cell) => getComputedStyle(cell, "::before").content.slice(1, -1);
           return [[...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim()),
                   [...table.tBodies[0].rows[0].cells].map(label)];"""
    )
    assert labels == titles


def test_text_in_figures_can_be_read_on_a_phone(browser, page):
    opened(browser, page, "phone")
    assert min(abs(size) for size in text_sizes(browser)) > 7


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_have_contrast(browser, page, theme):
    opened(browser, page, "desk", theme)
    colors = browser.execute_script(
        """const style = getComputedStyle(document.body);
           const numbers = (color) => color.match(/\\d+/g).slice(0, 3).map(Number);
           return [style.color, style.backgroundColor].map(numbers);"""
    )
    ink, paper = (sum(color) / 3 for color in colors)
    assert ink < 60 < 200 < paper if theme == "light" else paper < 60 < 200 < ink


def column(browser, table: str, title: str) -> list[str]:
    return browser.execute_script(
        """const table = document.getElementById(arguments[0]);
           const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
           const index = titles.indexOf(arguments[1]);
           return [...table.tBodies[0].rows].filter((row) => !row.hidden)
             .map((row) => row.cells[index].textContent.trim());""",
        table,
        title,
    )


def click_header(browser, table: str, title: str) -> str:
    """Clicks a column's title and returns how the column then says it is sorted."""
    (button,) = [
        button
        for button in browser.find_elements("css selector", f"#{table} th button")
        if button.text.strip() == title
    ]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", button)
    button.click()
    return button.find_element("xpath", "..").get_attribute("aria-sort")


def test_tables_are_sorted_by_number_and_by_size_and_unknown_values_stay_last(browser, page):
    opened(browser, page, "desk")
    assert click_header(browser, "records-table", "step, µs") == "ascending"
    times = column(browser, "records-table", "step, µs")
    known = [float(time) for time in times if time != "–"]
    assert known == sorted(known) and len(known) > 20
    assert times[len(known) :] == ["–"] * (len(times) - len(known)) and len(times) > len(known)
    assert click_header(browser, "records-table", "step, µs") == "descending"
    again = column(browser, "records-table", "step, µs")
    assert [float(time) for time in again[: len(known)]] == known[::-1]
    assert again[len(known) :] == times[len(known) :]
    click_header(browser, "records-table", "workload")
    names = list(dict.fromkeys(column(browser, "records-table", "workload")))
    widths = (128, 256, 512, 1024, 2048, 4096, 8192)
    assert names == [EVIL, *[f"mlp-784x{width}x{width}x{width}x10-b32" for width in widths]]
    click_header(browser, "summary-table", "vs best PyTorch")
    ratios = [float(text[:-1]) for text in column(browser, "summary-table", "vs best PyTorch") if text != "–"]
    assert ratios == sorted(ratios)


def test_words_filter_a_table(browser, page):
    opened(browser, page, "desk")
    before = len(column(browser, "records-table", "backend"))
    browser.find_element("css selector", 'input[data-table="records-table"]').send_keys("fp16 cuda-layered")
    backends = column(browser, "records-table", "backend")
    assert 0 < len(backends) < before
    assert set(backends) == {"cuda-layered"}


def test_a_number_of_the_first_screen_leads_to_its_record(browser, page):
    opened(browser, page, "desk")
    link = browser.find_element("css selector", ".extreme a")
    anchor = link.get_attribute("href").split("#")[1]
    link.click()
    row = browser.find_element("id", anchor)
    assert row.is_displayed()
    assert row.find_elements("tag name", "td")[2].text in link.get_attribute("title")


def test_a_name_that_is_a_script_is_text(browser, page):
    opened(browser, page, "desk")
    assert EVIL in browser.find_element("id", "records").text
    assert EVIL in browser.find_element("id", "reasons").text
    assert browser.execute_script("return document.scripts.length") == 1
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text


def test_everything_is_there_in_print(browser, page):
    opened(browser, page, "desk", "dark")
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert browser.execute_script("return [...document.querySelectorAll('details')].every((one) => one.open)")
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert not browser.find_element("tag name", "nav").is_displayed()
