"""What holds for all five HTML pages, in a real browser at two widths and in both color schemes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.report.html.assess import write_assess_page
from migrate.report.html.fit import write_fit_page
from migrate.report.html.parity.page import write_parity_page
from migrate.report.html.plots import bars, plot
from migrate.report.html.prove import write_prove_page
from migrate.report.html.run import write_run_page
from tests.assess import sample_assessments as assessments
from tests.parity import sample_comparisons as comparisons
from tests.report import created
from tests.report.browser import Browser

SCRIPT = Path("train.py")
LOOK = Path(__file__).with_name("look.js").read_text()
WRITERS: dict[str, Callable[[Path], None]] = {
    **{
        f"prove {name}": lambda path, make=make: write_prove_page(make(), SCRIPT, path)
        for name, make in created.PROOFS.items()
    },
    **{
        f"run {name}": lambda path, make=make: write_run_page(make(), SCRIPT, path)
        for name, make in created.RUNS.items()
    },
    **{
        f"fit {name}": lambda path, make=make: write_fit_page(make(), path)
        for name, make in created.FITS.items()
    },
    **{
        f"assess {name}": lambda path, make=assessments.ALL[name]: write_assess_page(make(), path)
        for name in ("move", "kernels", "undetermined")
    },
    "parity match": lambda path: write_parity_page(comparisons.with_all_sections(), path),
    "parity parts": lambda path: write_parity_page(comparisons.parting(4), path),
}
# Headline and class of the banner.
BANNERS = {
    "prove equal": ("Match", "fine"),
    "prove differs": ("Different", "wrong"),
    "prove no steps": ("No training steps", "open"),
    "prove resume": ("Cannot resume", "wrong"),
    "run steady": ("Runs on XLA", "fine"),
    "run slow": ("Runs on XLA, with slow steps", "open"),
    "run broken": ("Replicas run different graphs", "wrong"),
    "run nothing": ("Nothing ran on XLA", "wrong"),
    "fit fits": ("Fits on v5e-1 and v5e-8", "fine"),
    "fit too big": ("Fits on v6e-8, not on v5e-8", "wrong"),
    "assess move": ("Move to the TPU", "fine"),
    "assess kernels": ("Stay on the GPU", "wrong"),
    "assess undetermined": ("Undetermined", "open"),
    "parity match": ("Layers match, other checks fail", "wrong"),
    "parity parts": ("B diverges from the reference", "wrong"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name.replace(' ', '-')}.html" for name in WRITERS}
    for name, write in WRITERS.items():
        write(paths[name])
    return paths


# Each width and each scheme by default, the other pairs with the long tests.
VIEWS = [((400, "light"), (1200, "dark")), ((400, "dark"), (1200, "light"))]


@pytest.fixture(
    scope="module",
    params=[VIEWS[0], pytest.param(VIEWS[1], marks=pytest.mark.long)],
    ids=["400 light and 1200 dark", "400 dark and 1200 light"],
)
def looks(
    request: pytest.FixtureRequest, tab: Browser, pages: dict[str, Path]
) -> dict[tuple[str, int, str], dict[str, Any]]:
    """What Chromium shows of each page, by its name, the width and the scheme; folded parts are open."""
    tab.console.clear()
    tab.requested.clear()
    results = {}
    for name, page in pages.items():
        tab.open(page.as_uri())
        tab.evaluate(
            "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
        )
        for width, scheme in request.param:
            tab.looks(width, 900, scheme)
            results[name, width, scheme] = tab.evaluate(LOOK)
    assert tab.console == []
    assert tab.requested == [page.as_uri() for page in pages.values()]
    return results


def test_the_verdict_comes_first(looks: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    for (name, width, _), look in looks.items():
        banner = look["banner"]
        headline, state = BANNERS[name]
        assert banner["className"] == f"banner {state}", name
        lines = [line for line in banner["text"].splitlines() if line]
        assert lines[0].startswith(f"migrate {name.split()[0]}")
        assert lines[1].split(" ", 1)[1] == headline
        assert lines[2][-1] in ".!?"
        assert lines[3].startswith("Next: "), (name, lines)
        # All of it is in the window, without a move of the page.
        assert banner["top"] < 40
        assert banner["bottom"] < (700 if width == 400 else 400), name


def test_no_page_is_wider_than_its_window(
    looks: dict[tuple[str, int, str], dict[str, Any]],
) -> None:
    for (name, width, _), look in looks.items():
        assert look["overflow"] <= 0, (name, width)
        assert look["wide"] == [], (name, width)


def test_text_and_curves_stand_out_in_both_schemes(
    looks: dict[tuple[str, int, str], dict[str, Any]],
) -> None:
    for (name, _, scheme), look in looks.items():
        assert look["low"] == [], (name, scheme)
        assert (look["ground"] == "rgb(255, 255, 255)") is (scheme == "light")


def test_plots_have_plain_axes_a_description_and_legible_text(
    looks: dict[tuple[str, int, str], dict[str, Any]],
) -> None:
    drawn = {name.split()[0]: 0 for name, _, _ in looks}
    for (name, width, _), look in looks.items():
        for one in look["plots"]:
            drawn[name.split()[0]] += 1
            assert one["role"] == "img"
            assert len(one["label"]) > 20
            # An offset is written "1e−6+9.99999e−1", or "1e6" beside the axis.
            assert not [text for text in one["texts"] if re.search(r"\de[-−+]?\d+\s*[+−-]", text)]
            assert not [
                text for text in one["texts"] if re.fullmatch(r"[+−-]?1e[-−+]?\d+", text)
            ] or (
                "Histogram" in one["label"]  # its ticks are powers of ten, each written in full
            )
            assert one["smallest"] >= 7, (name, width)
        labels = [one["label"] for one in look["plots"]]
        assert len(labels) == len(set(labels)), name
    assert all(drawn.values())


def test_the_checks_find_what_is_wrong(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><main><h1 style='color: #999'>Pale</h1><p>fine</p>"
        "<div style='width: 2000px'>wide</div><table><tr><th>head</th></tr></table></main>"
    )
    tab.looks(400, 900)
    tab.open(page.as_uri())
    look = tab.evaluate(LOOK)
    assert [text.split(":")[0] for text in look["low"]] == ["Pale"]
    assert look["overflow"] > 1000
    assert any("2000px" in text for text in look["wide"])
    assert not look["heads"]
    assert not look["tables"]


def test_structure_helps_a_screen_reader(
    looks: dict[tuple[str, int, str], dict[str, Any]],
) -> None:
    for (name, _, _), look in looks.items():
        headings = look["headings"]
        assert headings[0] == 1
        assert headings.count(1) == 1
        steps = [after - before for before, after in itertools.pairwise(headings)]
        assert all(step <= 1 for step in steps), (name, headings)
        assert look["heads"], name
        assert look["tables"], name
        assert look["links"], name
        assert len(look["ids"]) == len(set(look["ids"])), name


def test_pages_stand_alone(pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        text = page.read_text()
        assert ("<script" in text) is name.startswith("parity"), name
        assert not re.search(r"\bsrc=|@import|url\((?!#)", text), name
        assert "#000000" not in text  # black of a plot would vanish on a dark page


def test_equal_results_are_equal_pages(pages: dict[str, Path], tmp_path: Path) -> None:
    for name in ("run slow", "fit too big"):  # prove and parity: in their own files
        again = tmp_path / "again.html"
        WRITERS[name](again)
        assert again.read_bytes() == pages[name].read_bytes()


def _rows(page: Path, heading: str) -> list[list[str]]:
    """Cells of the first table after a heading."""
    text = page.read_text()
    table = text[text.index(heading) :].split("<tbody>")[1].split("</tbody>")[0]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    ]


def test_all_ranks_and_weights_are_in_tables(pages: dict[str, Path]) -> None:
    steps = _rows(pages["prove equal"], "Steps of all ranks</h2>")
    assert len(steps) == 2 * created.STEPS * created.RANKS
    assert {row[2] for row in steps} == {"0", "1", "2", "3"}
    assert steps[0][9:11] == ["3", "3"]  # norms before clipping
    weights = _rows(pages["prove equal"], "Final weights</h2>")
    assert [row[0] for row in weights] == ["net.0.bias", "net.0.weight", "net.1.weight"]
    assert weights[2][4] == "3 of 1,200 elements left out: rounding moves them"
    replicas = _rows(pages["run steady"], "Simulated replicas</h2>")
    assert [row[:2] for row in replicas] == [[str(rank), "12"] for rank in range(4)]
    every = _rows(pages["run steady"], "Syncs of all ranks</h3>")
    assert len(every) == created.STEPS * created.RANKS


def test_a_proof_plots_what_it_compares(pages: dict[str, Path]) -> None:
    text = pages["prove differs"].read_text()
    plots = re.findall(r'<svg class="wide" role="img" aria-label="([^"]*)"', text)
    assert plots[0].startswith("Loss: the largest relative difference is inf; 6 steps of 12 above")
    assert plots[1].startswith("Gradient norm: the largest relative difference is inf; 6 steps")
    assert len(plots) == 3
    for label in ("above the limit", "not finite", "limit", "difference"):
        assert f">{label}</text>" in text
    equal = pages["prove equal"].read_text()
    assert "0 steps of 12 above the limit" in equal
    assert ">no difference</text>" in equal
    # Norms after clipping are all nearly 1: a plot of them would say nothing.
    assert "0.999999" in equal
    assert not re.search(r"0\.99999\d*</text>", equal)


def test_an_axis_has_no_offset() -> None:
    with plot("step", "norm", "Norms that are nearly equal.") as drawing:
        drawing.axes.plot([100_001, 100_002], [0.999999, 0.9999991])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.svg)
    assert "1" in texts
    assert not [text for text in texts if "e" in text and text[:1].isdigit()]
    assert any(text.startswith("100,00") for text in texts)


def test_a_plot_has_a_form_for_phones() -> None:
    svg = bars(["1", "2"], (("a", (1.0, 2.0), "#0072b1"),), "step", "graphs", "Graphs, twice.")
    assert re.findall(r'<svg class="(\w+)"', svg) == ["wide", "narrow"]
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert "var(--a)" in svg
    assert "1.5</text>" not in svg  # counts have whole ticks
