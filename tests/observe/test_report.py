"""What a real run on two simulated replicas shows, in the report, in JSON and on the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.observe.programs import SCRIPT, line_marked
from tests.report.browser import seen_by_chromium

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The JSON of one run, and the page that it wrote."""
    folder = tmp_path_factory.mktemp("observed")
    script, page = folder / "train.py", folder / "page.html"
    script.write_text(SCRIPT)
    migrate = Path(sys.executable).with_name("migrate")
    done = subprocess.run(
        [migrate, "run", script, "--json", "--html", page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "inside" in done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value["report"], page


def test_steps_end_at_the_line_of_the_block(run: tuple[dict[str, Any], Path]) -> None:
    report, _ = run
    (loop,) = report["loops"]
    assert (loop["line"]["line"], loop["steps"]) == (line_marked("step"), 6)
    assert loop["optimizer_steps"] == 6
    assert loop["line"]["text"] == "with torch_xla.step():  # step"
    # Warm: the first ones, the read and the other shape. The fifth is steady: one graph and the cuts.
    assert loop["executions"] == 1
    assert loop["cuts"] == 2
    assert 0 < loop["steady_seconds"] < loop["warm_up_seconds"]
    assert 0 < loop["compile_seconds"] < loop["warm_up_seconds"]
    assert report["ranks"] == 2
    assert report["simulated"]


def test_a_read_inside_of_the_step_is_named(run: tuple[dict[str, Any], Path]) -> None:
    report, _ = run
    reads = {read["line"]["line"]: read for read in report["reads"] if read["line"]}
    read = reads[line_marked("read")]
    assert (read["count"], read["ranks"], read["cause"]) == (2, [0, 1], "read")


def test_another_shape_is_why_it_was_compiled_again(run: tuple[dict[str, Any], Path]) -> None:
    report, _ = run
    last = [one for one in report["recompilations"] if one["step"] == 6]
    assert last
    said = " ".join(change for one in last for change in one["changes"])
    assert "the shape of an input: f32[8,8] → f32[5,8]" in said
    assert all(one["ranks"] == [0, 1] for one in last)
    # The fifth step is like the third, which only the read at the fourth interrupts.
    assert not [one for one in report["recompilations"] if one["step"] == 5]


def test_an_op_without_lowering_is_named_with_its_line(run: tuple[dict[str, Any], Path]) -> None:
    report, _ = run
    (fallback,) = [one for one in report["fallbacks"] if one["op"] == "aten::nonzero"]
    assert [line["line"] for line in fallback["lines"]] == [line_marked("fallback")]
    assert fallback["count"] == 2


def test_replicas_that_do_the_same_do_not_part(run: tuple[dict[str, Any], Path]) -> None:
    report, _ = run
    assert report["divergences"] == []


def test_the_page_stands_alone_and_a_browser_shows_it(
    run: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    _, page = run
    text = page.read_text()
    assert "<script" not in text
    assert "src=" not in text
    seen = seen_by_chromium(page, tmp_path)
    # As the browser has read it: headings, both plots, and the lines.
    assert seen.count('<svg class="wide"') == 2
    assert seen.count("<h2") == 6
    assert "with torch_xla.step():  # step" in seen
    assert "the shape of an input" in seen


def test_a_page_that_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('was run')\n")
    migrate = Path(sys.executable).with_name("migrate")
    command = [migrate, "run", script, "--html", tmp_path / "missing" / "page.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "missing/page.html" in line
