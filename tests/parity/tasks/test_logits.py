"""Logits: KL, the top tokens, near-ties; σ of a faulty side does not excuse it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import write_inputs
from migrate.parity.tasks.gradients import compare_gradients
from migrate.parity.tasks.logits import (
    Tally,
    allowed_noise,
    compare_logits,
    count,
    divergence,
    log_softmax,
    margins,
    noise_of,
    ranked,
)
from tests.parity.tasks.parties_made import (
    Mlp,
    Words,
    changed,
    parties,
    seeded,
    tokens,
    vectors,
)


def rows(section: Section | None) -> dict[str, ParityCheck]:
    assert section is not None
    return {check.name: check for check in section.checks}


def kl(one: Any, other: Any) -> Any:
    return divergence(log_softmax(one), log_softmax(other))


def test_divergence_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 3, 7))
    p, q = (np.exp(array) / np.exp(array).sum(-1, keepdims=True) for array in (one, other))
    assert kl(one, other) == pytest.approx((p * np.log(p / q)).sum(-1))
    assert kl(one, one + 5).max() < 1e-14
    # Small noise: KL ≈ ½σ², of flat distributions.
    flat = np.zeros((50, 1000))
    noisy = 0.01 * rng.standard_normal(flat.shape)
    assert kl(flat, noisy).mean() == pytest.approx(0.5e-4, rel=0.05)


def test_what_is_masked_has_no_part_in_it() -> None:
    one = np.array([[1.0, 2.0, -np.inf, -1e9]])
    other = np.array([[1.0, 2.0, np.finfo(np.float32).min, -np.inf]])
    assert kl(one, other).tolist() == [0.0]
    assert kl(one, np.array([[1.0, np.nan, 0, 0]])).tolist() == [math.inf]
    assert kl(one, np.array([[1.0, -np.inf, 0, 0]])).tolist() == [math.inf]


def test_ties_are_kept_apart() -> None:
    truth = np.array([[0.0, 1.0, 0.5], [0.0, 1.0, 0.999], [3.0, 1.0, 0.0]])
    flipped = np.array([[0.0, 1.0, 0.5], [0.0, 0.998, 0.999], [0.0, 1.0, 0.0]])
    tally = Tally()
    count(
        tally, margins(truth), ranked(truth), ranked(flipped), noise=0.001
    )  # margins above 0.0085 are beyond doubt
    assert (tally.positions, tally.decisive, tally.agreed, tally.flipped) == (3, 2, 1, 1)


def test_the_same_model_has_the_same_tokens(tmp_path: Path) -> None:
    made = parties(seeded(Words), seeded(Words), tokens(tmp_path), tmp_path)
    section = compare_logits(made)
    found = rows(section)
    assert section is not None
    assert section.passed
    assert found["top-1"].a == found["top-1"].b == 1.0
    assert 0 < (found["KL from the truth, mean"].b or 0) < 1e-10
    assert found["KL A to B, max"].b == 0.0
    assert "of 240 positions are near-ties" in section.notes[1]


def test_a_fault_is_not_excused_by_its_own_noise(tmp_path: Path) -> None:
    inputs = tokens(tmp_path)
    wrong = changed(seeded(Words), head__weight=lambda value: 1.2 * value)
    for emulated in (True, False):
        made = parties(seeded(Words), wrong, inputs, tmp_path / str(emulated), emulated=emulated)
        (a, *_), allowed = noise_of(made, made.b, "logits").errors, allowed_noise(made, "logits")
        assert a > 1000 * allowed[0]
        found = rows(compare_logits(made))
        assert not found["KL from the truth, mean"].passed
        assert not found["KL A to B, mean"].passed
        assert found["KL from the truth, mean"].a is not None
        assert not found["top-5"].passed
        assert found["top-5"].a == 1.0


def test_one_wrong_position_is_seen(tmp_path: Path) -> None:
    made = parties(seeded(Words), seeded(Words), tokens(tmp_path), tmp_path)
    ref = made.b.dump.outputs[2][0]
    values = made.b.dump.tensor(ref).copy()
    values[1, 7] = 5 * values[0, 1]

    class Dump:
        def __getattr__(self, name: str) -> object:
            return getattr(made.b.dump, name)

        def tensor(self, asked: object) -> object:
            return values if asked == ref else made.b.dump.tensor(asked)  # type: ignore[arg-type]

    b = dataclasses.replace(made.b, dump=Dump())  # type: ignore[arg-type]
    found = rows(compare_logits(dataclasses.replace(made, b=b)))
    assert found["KL from the truth, p99.9"].b is not None
    assert not found["KL from the truth, max"].passed
    assert found["top-1"].b == pytest.approx(1 - 1 / 240, abs=1e-2)
    assert not found["top-1"].passed


def test_bfloat16_flips_near_ties_only(tmp_path: Path) -> None:
    made = parties(
        seeded(Words),
        seeded(Words),
        tokens(tmp_path, 8),
        tmp_path,
        b_settings=SideSettings(dtype="bfloat16"),
        profile="bf16",
    )
    section = compare_logits(made)
    assert section is not None
    assert section.passed, section.checks
    assert any(note.startswith("B:") and "in 0 of them" not in note for note in section.notes)


def test_where_there_are_no_logits(tmp_path: Path) -> None:
    made = parties(seeded(Mlp), seeded(Mlp), vectors(tmp_path, 1), tmp_path)
    assert compare_logits(made) is None
    assert compare_logits(made, "") is not None
    with pytest.raises(ParityError, match="no output words"):
        compare_logits(made, "words")


def test_padding_is_left_out(tmp_path: Path) -> None:
    texts = ["input_ids=int64[3,20]<50", "attention_mask=ones:int64[3,20]"]
    inputs = make_inputs(texts, 2, 0, tmp_path / "inputs")

    class Padded(Words):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return super().forward(input_ids)

    class Noisy(Padded):
        """What it says at padding is of no use to anybody."""

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            made = super().forward(input_ids)["logits"]
            return {"logits": made + 7 * (1 - attention_mask[..., None]) * made}

    masked = []
    for number in range(2):
        arrays = inputs[number]
        arrays["attention_mask"][:, 15:] = 0
        masked.append(arrays)
    inputs = write_inputs(tmp_path / "masked", masked)
    made = parties(seeded(Padded), seeded(Noisy), inputs, tmp_path)
    section = compare_logits(made)
    assert section is not None
    assert section.passed
    assert "90 positions" in section.notes[0]
    assert compare_gradients(made).passed
