"""Pictures in a real browser with the network cut: pages exported from a notebook, and JupyterLab itself."""

import os

import pytest

from tests import gallery, pages
from tests.browser import Browser, found, wait_for

pytestmark = pytest.mark.skipif(
    found() is None and "CI" not in os.environ,
    reason="There is no Chromium here: install it (Debian: chromium) or name it in the variable CHROMIUM.",
)

SETUP = """
import torch
from utils.notebook import setup
setup()
from utils import plots, scenes, views
rng = torch.Generator().manual_seed(0)
words = ["¶", "</script>", "<b>", "keep", "in", "mind", "é 🙂", "שלום", "a\\u200bb", "\\n"]
pattern = torch.rand(3, 10, 10, generator=rng).tril()
pattern = pattern / pattern.sum(-1, keepdim=True)
heads = ["0.0", "0.1", "1.0"]
"""
ATTENTION = "views.attention(pattern, words, heads)"
ONE_HEAD = 'views.attention(pattern[:1], words, ["0.0"])'
HEATMAP = 'plots.heatmap(torch.randn(10, 10, generator=rng), words, words, "A table", "next", "current")'
CURVES = 'plots.curves({"loss": ([0, 1, 2], [3.0, 2.0, 1.0])}, "It falls", "step", "nats")'
SCORES = 'scenes.scores({"none": torch.randn(10, 10, generator=rng), "K": torch.randn(10, 10)}, words, "Scores")'
LADDER = 'plots.ladder({"one": {"A": 1.0, "B": 2.0}}, {"A": 0.5, "B": 0.1}, "A ladder")'
EXPLORER = """
from utils.model import AttentionOnly, AttentionOnlyConfig
from utils.paths import expand_logits
model = AttentionOnly(AttentionOnlyConfig(2, 3, 12, 4, 10, 10))
tokens = torch.arange(10)[None]
views.path_explorer(words, words, title="Paths", **expand_logits(model, tokens).picture(tokens))
"""
VIEWS = [ATTENTION, ONE_HEAD] * 5
FIGURES = [HEATMAP, CURVES, SCORES, LADDER, HEATMAP] * 2
PICTURES = '[role="figure"]'
DRAWN = "[...document.querySelectorAll('.plotly-graph-div')].every(figure => figure.querySelector('.main-svg'))"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """An exported page of ten circuitsvis views, ten plotly figures and a path explorer, open in a browser."""
    path = pages.notebook(tmp_path_factory.mktemp("page"), [SETUP, *VIEWS, *FIGURES, EXPLORER])
    exported = pages.exported(path)
    with Browser() as browser:
        browser.open(exported.as_uri())
        browser.wait(DRAWN)
        browser.file = exported
        yield browser


def all_drawn(browser: Browser, number: int) -> None:
    """Every picture is as large as a picture is, and has more colours than an empty one."""
    assert browser.run(f"document.querySelectorAll({PICTURES!r}).length") == number
    for index in range(number):
        box = browser.box(PICTURES, index)
        assert box["width"] > 200, index
        assert box["height"] > 100, index
        wait_for(lambda: browser.colours(browser.shot(PICTURES, index)) > 20, f"colours in picture {index}", 20)  # noqa: B023


def test_every_picture_on_an_exported_page_is_drawn(page):
    all_drawn(page, 21)


def test_the_page_is_small_and_asks_nobody_for_anything(page):
    assert page.file.stat().st_size <= 8_000_000
    assert pages.hosts(page.file) == set()
    assert page.abroad == []
    assert page.errors == []


def test_scripts_are_on_the_page_once(page):
    text = page.file.read_text(encoding="utf-8")
    assert text.count("window.CircuitsVis = CircuitsVis;") == text.count("window.Plotly = Plotly;") == 1


def test_every_picture_has_words(page):
    words = page.run(f"[...document.querySelectorAll({PICTURES!r})].map(picture => picture.getAttribute('aria-label'))")
    assert all(len(alt) > 20 for alt in words)
    assert any("Heatmap, 10 rows (current) by 10 columns (next)" in alt for alt in words)


def test_pointing_at_a_head_enlarges_it(page):
    zoomed = f"document.querySelectorAll({PICTURES!r})[0].innerText"
    assert "0.0" in page.run(zoomed)
    heads = page.run(f"document.querySelectorAll({PICTURES!r})[0].querySelectorAll('canvas').length")
    assert heads >= 3
    page.hover(f"{PICTURES} canvas", 1)
    page.wait(f"{zoomed}.includes('0.1 Zoomed')")


def test_hostile_tokens_are_shown_as_they_are(page):
    shown = page.run("[...document.querySelectorAll('bdi')].map(word => word.textContent)")
    assert shown == ["¶", "</script>", "<b>", "keep", "in", "mind", "é 🙂", "שלום", "a⟨200B⟩b", "⏎"]


def test_choosing_a_token_changes_the_bars_and_they_add_up(page):
    page.click('button[data-place="9"]')
    last = page.run("document.querySelector('.said').textContent")
    assert "(9)" in last
    page.click('button[data-place="4"]')
    page.wait("document.querySelector('.said').textContent.includes('After “in” (4)')")
    values = page.run("[...document.querySelectorAll('button.path')].map(row => row.lastChild.textContent)")
    numbers = [float(value.replace("−", "-")) for value in values]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.005 * len(numbers))
    assert page.run("document.querySelectorAll('button[data-place]')[7].style.opacity") == "0.4"  # it comes later


def test_pointing_at_a_path_shows_where_it_comes_from_and_a_click_keeps_it(page):
    colours = "[...document.querySelectorAll('button[data-place]')].map(token => token.style.background).join()"
    before = page.run(colours)
    page.hover("button.path[data-path]", 1)
    path = page.run("document.querySelectorAll('button.path[data-path]')[1].dataset.path")
    page.wait(f"document.querySelector('[data-through]').dataset.through === {path!r}")
    assert page.run(colours) != before
    page.click("button.path[data-path]", 1)
    page.hover("button[data-place]")
    assert page.run("document.querySelector('[data-through]').dataset.through") == path
    page.click('input[value="attention"]')
    page.wait("document.querySelectorAll('button[data-place]')[0].title.startsWith('attention')")


def test_a_slider_changes_the_figure(page):
    figure = "document.querySelectorAll('.js-plotly-plot')[2]"  # scores
    before = page.run(f"{figure}.data[0].y.slice(0, 3)")
    page.run(f"Plotly.animate({figure}, ['keep (3)'], {{mode: 'immediate', frame: {{duration: 0}}}})")
    page.wait(f"{figure}.data[0].y[4] === null")  # what comes after “keep” has no bar
    assert page.run(f"{figure}.data[0].y.slice(0, 3)") != before


def test_every_picture_of_the_gallery_is_drawn(tmp_path):
    (tmp_path / "gallery.html").write_text(gallery.as_page({name: draw() for name, draw in gallery.PICTURES.items()}), "utf-8")
    with Browser() as browser:
        browser.open((tmp_path / "gallery.html").as_uri())
        browser.wait(DRAWN)
        for name in gallery.PICTURES:
            wait_for(lambda: browser.colours(browser.shot(f"#{name}")) > 20, f"colours in {name}", 20)  # noqa: B023
        assert browser.errors == browser.abroad == []


def test_pictures_are_drawn_in_jupyterlab(tmp_path):
    pages.notebook(tmp_path, [SETUP, ATTENTION, ONE_HEAD, HEATMAP, SCORES, EXPLORER])
    with pages.lab(tmp_path) as address, Browser() as browser:
        browser.open(f"{address}/lab/tree/pictures.ipynb")
        browser.wait("document.querySelectorAll('.jp-CodeCell').length === 6", 120)
        browser.click(".jp-CodeCell .jp-InputPrompt")
        browser.wait("jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus === 'connected'", 120)
        browser.wait("document.body.innerText.includes('(ipykernel) | Idle')", 120)
        browser.run("void jupyterapp.commands.execute('notebook:run-all-cells')")
        browser.wait(f"document.querySelectorAll({PICTURES!r}).length === 5 && {DRAWN}", 120)
        all_drawn(browser, 5)
        browser.click('button[data-place="3"]')
        browser.wait("document.querySelector('.said').textContent.includes('After “keep” (3)')")
        assert browser.abroad == []
