from __future__ import annotations

import dataclasses
import html
import math
import re
from pathlib import Path

import pytest

from migrate.parity.ground.results import (
    LayerVerdict,
    Parity,
    ParityCause,
    ParityCheck,
    Section,
    TensorLayout,
)
from migrate.report.html.parity.cells import SHADES, WORST, HeatMap, cell
from migrate.report.html.parity.page import write_parity_page
from migrate.report.text.parity.nodes import module_tree
from migrate.report.text.parity.words import PARTING
from tests.parity import sample_comparisons as comparisons
from tests.report.browser import Browser


def written(parity: Parity, folder: Path, name: str = "page.html") -> Path:
    path = folder / name
    write_parity_page(parity, path)
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: written(make(), folder, f"{name}.html") for name, make in comparisons.ALL.items()}


@pytest.mark.parametrize("name", comparisons.ALL)
def test_a_page_is_one_file_with_the_verdict_and_all_layers(
    name: str, pages: dict[str, Path]
) -> None:
    parity = comparisons.ALL[name]()
    text = pages[name].read_text()
    assert text.count('<header class="banner ') == 1
    assert html.escape(parity.sentence, quote=False).replace("'", "&#39;").rstrip(".") in text
    assert len(re.findall(r'<tr id="l\d+"', text)) == len(parity.layers)
    for layer in parity.layers:
        assert f"<code>{layer.name or 'the model itself'}</code>" in text
    for section in parity.sections:
        assert all(f"<code>{check.name}</code>" in text for check in section.checks)
    # Only to places in the page itself, and to what SVG calls its own names.
    assert not re.search(r"\bsrc=|@import|url\((?!#)", text)
    assert not [one for one in re.findall(r'href="([^"]*)"', text) if not one.startswith("#")]
    ids = re.findall(r'<(?!use\b|clipPath\b|path\b)[^>]*\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_equal_comparisons_are_equal_pages(tmp_path: Path, pages: dict[str, Path]) -> None:
    again = written(comparisons.with_all_sections(), tmp_path)
    assert again.read_bytes() == pages["with_all_sections"].read_bytes()


def test_a_deep_model_is_a_small_page(tmp_path: Path) -> None:
    parity = comparisons.parting(34)
    assert len(parity.layers) > 600
    page = written(parity, tmp_path)
    assert page.stat().st_size < 3_000_000


def test_how_a_side_lies_is_on_the_page(tmp_path: Path) -> None:
    parity = comparisons.parting(1, "pooler.dense")
    lies = TensorLayout("output", "", None, (0, 2, 3, 1), None)
    layers = [
        dataclasses.replace(one, b=one.b and dataclasses.replace(one.b, layouts=(lies,)))
        for one in parity.layers
    ]
    text = written(dataclasses.replace(parity, layers=tuple(layers)), tmp_path).read_text()
    assert "has another layout: axes 0, 2, 3, 1 at " in text
    assert text.count("B output: axes 0, 2, 3, 1") == sum(one.b is not None for one in layers)


def test_names_are_text(tmp_path: Path) -> None:
    odd = 'x$\\frac$<script>alert("1")</script>&_'
    parity = comparisons.parting(1, "pooler.dense")
    layers = [dataclasses.replace(one, kind=odd) for one in parity.layers]
    at = next(index for index, one in enumerate(layers) if one.name == "pooler.dense")
    layers[at] = dataclasses.replace(layers[at], name=odd)
    parity = dataclasses.replace(
        parity,
        layers=tuple(layers),
        first=layers[at],
        sentence=odd,
        causes=(ParityCause(odd, odd, odd, True),),
        sections=(
            Section(odd, (ParityCheck(odd, 1.0, math.inf, 2.0, False, odd),), ((odd, (1.0, 2.0)),)),
        ),
        histograms=((odd, (-2.0, -1.0, 0.0), (1, 2), (0, 0)),),
    )
    text = written(parity, tmp_path).read_text()
    assert text.count("<script>") == 1
    assert "alert(&#34;1&#34;)" in text


def test_shades_are_multiples_of_the_limit() -> None:
    for shade, bound, _ in SHADES:
        assert cell(comparisons.errors(0.99 * bound * 1e-6), 1e-6).shade == shade
    assert cell(comparisons.errors(1.1e-3), 1e-6).shade == WORST
    assert cell(comparisons.errors(math.nan, not_finite=3), 1e-6).shade == "nan"
    assert cell(None, 1e-6).text == "–"
    assert cell(comparisons.errors(0.5), math.inf).shade == "none"


def test_every_verdict_has_its_place_in_the_tree() -> None:
    parity = comparisons.parting(1, "pooler.dense")
    for verdict in LayerVerdict:
        layers = tuple(dataclasses.replace(one, verdict=verdict) for one in parity.layers)
        (root,) = HeatMap(dataclasses.replace(parity, layers=layers)).rows(module_tree(layers))
        state = "parts" if verdict in PARTING else verdict.value.replace(" ", "-")
        assert root.state == state


VISIBLE = "[...document.querySelectorAll('#layers ~ div tbody tr')].filter(r => r.offsetParent)"
NAMES = f"{VISIBLE}.map(r => r.querySelector('code').textContent)"


def test_the_search_shows_the_rows_that_have_all_its_words(tab: Browser, tmp_path: Path) -> None:
    parity = comparisons.parting(3, "encoder.layer.1.intermediate.intermediate_act_fn")
    page = written(parity, tmp_path).as_uri()
    tab.open(f"{page}#search=gelu")
    block = "encoder.layer.{}.intermediate.intermediate_act_fn"
    assert tab.evaluate(NAMES) == [block.format(number) for number in range(3)]
    assert f"3 of {len(parity.layers)} rows" in tab.dom()

    def search(text: str) -> None:
        event = "box.dispatchEvent(new Event('input'))"
        found = "const box = document.querySelector('#layers ~ div .box')"
        tab.evaluate(f"{{ {found}; box.value = {text!r}; {event}; }}")

    search("GELU b DIVERGES")
    assert tab.evaluate(NAMES) == [block.format(1)]
    assert tab.evaluate("location.hash") == "#search=GELU%20b%20DIVERGES"
    search("nothing has this")
    assert tab.evaluate(NAMES) == []
    search("")
    assert len(tab.evaluate(NAMES)) == len(parity.layers)
    tab.open(f"{page}#search=rotary")
    assert tab.evaluate(NAMES) == ["encoder.layer.0.attention.rotary"]
    tab.open(f"{page}#search=%")
    assert "0 of " in tab.dom()
    assert tab.console == []


def test_a_click_on_a_heading_sorts(tab: Browser, tmp_path: Path) -> None:
    tab.open(written(comparisons.parting(3, "pooler.dense"), tmp_path).as_uri())
    heading = "document.querySelectorAll('#layers ~ div th button')"
    tab.evaluate(f"{heading}[3].click()")
    assert tab.evaluate(NAMES)[0] == "pooler.dense"
    tab.evaluate(f"{heading}[3].click()")
    assert tab.evaluate(NAMES)[-1] == "pooler.dense"
    tab.evaluate(f"{heading}[0].click()")
    assert tab.evaluate(NAMES)[0] == "the model itself"
    assert tab.console == []


def test_without_scripts_all_is_there(tab: Browser, pages: dict[str, Path]) -> None:
    parity = comparisons.with_all_sections()
    page = pages["with_all_sections"].as_uri()
    tab.scripts(allowed=False)
    try:
        tab.open(f"{page}#search=gelu")
        seen = tab.dom()
    finally:
        tab.scripts(allowed=True)
    assert seen.count('class="toolbar" hidden') == 2
    assert "<button" not in seen
    assert html.escape(parity.sentence, quote=False) in seen
    assert len(re.findall(r'<tr id="l\d+">', seen)) == len(parity.layers)
    assert "encoder.layer.7.intermediate.intermediate_act_fn" in seen
