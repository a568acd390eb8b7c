"""Gradients that a script multiplies by one factor between its last backward and its optimizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from migrate.train import factor as factors
from migrate.train.errors import TrainError
from migrate.train.factor import factor_note, settled_factor, with_factor
from migrate.train.options import TrainOptions
from migrate.train.slice.text import ScriptText
from migrate.train.watch.factors import common_factor
from migrate.train.write.counts import NoCount, counted_source
from migrate.train.write.factor import ScaledGradients
from migrate.train.write.texts import train_text
from tests.train.test_means import FACTS, HEAD

SCRIPT = ScriptText("toy.py", "import torch\n")


def gradients(**values: Any) -> dict[str, torch.Tensor | None]:
    """Gradients by names."""
    return {name: None if x is None else torch.tensor(x) for name, x in values.items()}


BEFORE = gradients(a=[1.0, -2e-5, 0.0], b=[[3e-9], [7.0]], unused=None)


@pytest.mark.parametrize("factor", [1 / 3, 0.017, 512.0, -1.0])
def test_a_factor_is_found_whatever_call_multiplies(factor: float) -> None:
    after = {n: None if x is None else x.clone().mul_(factor) for n, x in BEFORE.items()}
    assert common_factor(BEFORE, after) == pytest.approx(factor, rel=1e-7)
    after = {n: None if x is None else x / torch.tensor(1 / factor) for n, x in BEFORE.items()}
    assert common_factor(BEFORE, after) == pytest.approx(factor, rel=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        {"a": [2.0, -4e-5, 0.0]},  # one tensor alone
        {"a": [2.0, -4.0001e-5, 0.0], "b": [[6e-9], [14.0]]},  # not by one number
        {"a": [2.0, -4e-5, 1e-9], "b": [[6e-9], [14.0]]},
        {"a": [float("nan")] * 3, "b": [[6e-9], [14.0]]},
        {"a": [2.0, -4e-5, 0.0], "b": None},
        {"a": [2.0, -4e-5, 0.0], "b": [[6e-9], [14.0]], "unused": [1.0]},
    ],
)
def test_other_changes_have_no_factor(change: dict[str, Any]) -> None:
    assert common_factor(BEFORE, {**BEFORE, **gradients(**change)}) is None


def test_gradients_of_zero_show_no_factor() -> None:
    assert common_factor(gradients(a=[0.0]), gradients(a=[0.0])) is None


def summed(*lines: str) -> str:
    """The last statement of the count of a sum."""
    source = HEAD + "".join(f"        {line}\n" for line in lines)
    return counted_source(source, sums=True).source.rstrip().splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        (("return cross_entropy(logits, y, reduction='sum', ignore=0)",), "(y != 0).sum()"),
        (("total = (logits.sum(-1) * mask).sum()", "return -total"), "mask.sum()"),
        (("return 0.5 * (mask * -logits[..., 0]).sum() + 1",), "mask.sum()"),
        (("return jnp.sum(jnp.square(logits - y))",), "jnp.square(logits - y).size"),
    ],
)
def test_the_elements_that_a_sum_adds_are_the_count(lines: tuple[str, ...], count: str) -> None:
    assert summed(*lines) == f"return {count}"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("return cross_entropy(logits, y)",), "is no sum"),
        (("return logits.mean()",), "is no sum with a visible number of elements"),
        (("return (logits * mask).sum() / mask.sum()",), "is no sum with a visible number"),
        (("return (logits * mask).sum() + y.sum()",), "are sums over other numbers of elements"),
    ],
)
def test_other_losses_have_no_number_of_added_elements(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(NoCount, match=words):
        summed(*lines)


def record(*values: float, later: tuple[Any, ...] = (), line: int = 7) -> dict[str, Any]:
    """A record of updates with these factors."""
    return {
        "scaled": line,
        "updates": [{"factor": value} for value in values],
        "later_scaled": list(later),
    }


SUM = f"{HEAD}        return (logits * mask).sum()\n"


def test_a_constant_factor_is_a_number_of_the_program() -> None:
    assert with_factor(FACTS, SCRIPT, record(1.0, line=0), SUM) is FACTS
    facts = with_factor(FACTS, SCRIPT, record(0.25, 0.25, later=(([], 0.25),)), SUM)
    assert facts.scaled == ScaledGradients("toy.py:7", 0.25)
    text = train_text(facts)
    assert "before toy.py:7.\n    factor = 1 / 4\n" in text
    assert "count" not in text
    assert "multiplied by 1 / 4: so the script did in each of 3 updates" in factor_note(
        facts, record(0.25, 0.25, later=(([], 0.25),))
    )


def test_a_factor_that_changes_is_divided_by_the_number_of_elements() -> None:
    facts = with_factor(FACTS, SCRIPT, record(0.25, later=(([], 0.5),)), SUM)
    assert facts.scaled is not None
    assert facts.scaled.value == "1 / elements"
    text = train_text(facts)
    assert "elements = sum(count(state.params, state.variables, x) for x in" in text
    assert "apply(state.params, state.opt_state, grads, elements)" in text


@pytest.mark.parametrize(
    ("changes", "source", "words"),
    [
        (
            {},
            f"{HEAD}        return logits.mean()\n",
            "before it, the gradients are multiplied by factors that change, 0.2 to 0.25, and logits.mean()",
        ),
        ({"counted": True}, SUM, "leave --global-mean out"),
    ],
)
def test_a_factor_that_nothing_explains_is_refused_at_its_line(
    changes: dict[str, Any], source: str, words: str
) -> None:
    with pytest.raises(TrainError) as refused:
        with_factor(replace(FACTS, **changes), SCRIPT, record(0.25, 0.2), source)
    assert str(refused.value).startswith("toy.py:7: ")
    assert words in f"{refused.value} {refused.value.remedy}"


def settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[list[float]], *values: float
) -> ScaledGradients | None:
    """The factor of a script with these factors, whose program counts these elements."""

    def child(module: str, paths: Any, timeout: float) -> tuple[int, str]:
        paths[-1].write_text(json.dumps({"counts": counts}))
        return 0, ""

    monkeypatch.setattr(factors, "child", child)
    recorded = record(*values[:2], later=(([], 9.0), *((["batch"], v) for v in values[2:])))
    facts = with_factor(FACTS, SCRIPT, recorded, SUM)
    options = TrainOptions(tmp_path / "toy.py", tmp_path)
    return settled_factor(tmp_path, SCRIPT, recorded, facts, options, tmp_path).scaled


def test_the_scripts_own_numbers_settle_the_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [[3.0, 5.0], [4.0, 6.0], [2.0]]
    scaled = settled(tmp_path, monkeypatch, counts, 2 / 8, 2 / 10, 2 / 2)
    assert scaled is not None
    assert scaled.value == "2.0 / elements"
    with pytest.raises(TrainError) as refused:
        settled(tmp_path, monkeypatch, counts, 2 / 8, 2 / 10, 2 / 3)
    assert "the losses of update 2 add 2 elements, those of update 0 8" in str(refused.value)
