from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from migrate.prove.compare.compare import StepComparison, WeightComparison
from migrate.prove.compare.gates import LOSS_GATE, Gates
from migrate.prove.compare.noise_floor import NoiseFloor, StepFloor
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import Proof
from migrate.prove.recording.records import StepRecord
from migrate.report.html.page import PageError
from migrate.report.html.prove import StepRow, _row, write_prove_page
from tests.report.browser import Browser


def record(step: int, loss: float) -> StepRecord:
    return StepRecord(
        step=step,
        optimizer=0,
        losses=(loss,),
        gradient_norm=2 * loss,
        clipped_from=(),
        parameters=2,
        with_gradient=2,
        in_modules=2,
        learning_rates=(0.1,),
        checksum=(1.0, 2.0),
        dropout=0.0,
    )


def proof(verdict: ProofVerdict, *losses: tuple[float, float]) -> Proof:
    steps = tuple(
        StepComparison(number, 0, 0, record(number, one), record(number, other), 1e-7, None)
        for number, (one, other) in enumerate(losses, 1)
    )
    return Proof(
        verdict=verdict,
        message="as it <was> found",
        replicas=2,
        steps=steps,
        weights=(WeightComparison("layer.weight", 1, 3e-7, False),),
        difference=None,
        notes=("a note",),
        original_seconds=1.5,
        rewritten_seconds=2.5,
    )


def test_the_next_command_has_the_arguments_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    found = proof(ProofVerdict.MATCH, (1.5, 1.5))
    write_prove_page(found, Path("train.py"), path, ("--epochs", "1"))
    assert "migrate fit train.py --tpu v5e-8 -- --epochs 1<" in path.read_text()


def test_both_sides_are_drawn_and_a_browser_shows_them(tab: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    found = proof(ProofVerdict.MATCH, (1.5, 1.5), (1.25, 1.25), (1.0, float("nan")))
    write_prove_page(found, Path("train.py"), path)
    text = path.read_text()
    assert "<script" not in text
    assert "src=" not in text
    tab.open(path.as_uri())
    seen = tab.dom()
    assert seen.count('<svg class="wide"') == 2
    assert seen.count('<svg class="narrow"') == 2
    assert "As it &lt;was&gt; found." in seen
    assert "layer.weight" in seen
    assert "1.25" in seen


def test_a_step_has_no_limit_where_the_noise_is_too_large() -> None:
    first, second = proof(ProofVerdict.MATCH, (1.5, 1.5), (1.25, 1.25)).steps
    floor = NoiseFloor((StepFloor(1, 0, 1e-4), StepFloor(2, 0, 0.5)), {})
    assert _row(first, Gates(floor)) == StepRow(first, 4e-4, None)
    assert _row(second, Gates(floor)) == StepRow(second, None, None)
    assert not _row(first, Gates(floor)).loss_failed
    assert _row(first, Gates()).loss_limit == LOSS_GATE


def test_losses_and_norms_have_limits_of_their_own_in_bfloat16() -> None:
    (step,) = proof(ProofVerdict.MATCH, (1.5, 1.5)).steps
    step = dataclasses.replace(step, loss_difference=1e-4, gradient_difference=1e-4)
    row = _row(step, Gates(bfloat16=True))
    assert (row.loss_failed, row.gradient_failed) == (False, True)


def test_a_proof_without_steps_has_a_page_too(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_prove_page(proof(ProofVerdict.NO_STEPS), Path("train.py"), path)
    assert "No training steps" in path.read_text()
    assert "<svg" not in path.read_text()


def test_equal_proofs_are_equal_pages(tmp_path: Path) -> None:
    pages = [tmp_path / "one.html", tmp_path / "other.html"]
    for page in pages:
        write_prove_page(proof(ProofVerdict.MATCH, (1.5, 1.5)), Path("train.py"), page)
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"missing/page\.html"):
        write_prove_page(
            proof(ProofVerdict.MATCH), Path("train.py"), tmp_path / "missing" / "page.html"
        )
