"""What rounding does to Adam's first step, and that a proof knows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from migrate.prove.compare import verdict
from migrate.prove.compare.gates import CEILING, MARGIN, PARAMETER_GATE, Gates
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.record.noise.adam import first_moves
from migrate.prove.recording import records
from migrate.prove.recording.records import Header, RankRecord, StepRecord
from migrate.prove.recording.weights import save

# One unit of float32.
UNIT = 2.0**-23


def stepped(
    gradient: torch.Tensor, kind: Any = torch.optim.AdamW, **options: Any
) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    optimizer = kind([parameter], lr=1e-3, **options)
    parameter.grad = gradient.clone()
    optimizer.step()
    return parameter, optimizer


def moves(parameter: torch.Tensor, optimizer: torch.optim.Optimizer, step: int = 1) -> float | None:
    read = first_moves(optimizer, {id(parameter): "bias"}, step)
    return read({"bias": [1.0] * (3 if parameter.numel() % 3 == 0 else 1)}).get("bias")


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("least", [0.0, 1e-9, 1e-7, 1e-3])
def test_the_estimate_is_what_rounding_of_the_gradient_does(kind: Any, least: float) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(64) * 1e-3
    gradient[5] = least
    scale = UNIT * gradient.square().mean().sqrt()
    clean, optimizer = stepped(gradient, kind)
    apart = [
        (stepped(gradient + scale * torch.randn(64) * (gradient != 0), kind)[0] - clean).norm()
        for _ in range(30)
    ]
    seen = (sum(one.item() ** 2 for one in apart) / len(apart)) ** 0.5 / clean.norm().item()
    estimate = moves(clean, optimizer)
    assert estimate is not None
    # Of ordinary gradients both are below the rounding of the parameters themselves.
    assert seen < max(1.5 * estimate, 2 * UNIT)
    assert estimate < max(1.5 * seen, 2 * UNIT)


def test_the_bias_of_the_transformer_example() -> None:
    """One element of 1.03e-7 among 32 with a root mean square of 1.4e-3 was seen to move it by 2.3e-5."""
    gradient = torch.full((32,), 1.42e-3)
    gradient[11] = 1.03e-7
    estimate = moves(*stepped(gradient))
    assert estimate == pytest.approx(2.3e-5, rel=0.1)


def test_an_element_of_rounding_noise_may_take_the_other_sign() -> None:
    gradient = torch.full((100,), 1.0)
    gradient[3] = 1e-9
    estimate = moves(*stepped(gradient))
    assert estimate is not None
    assert 0.08 < estimate < 0.11  # of 100 elements one, by its whole step


def test_only_adams_own_first_step_is_looked_at() -> None:
    gradient = torch.full((32,), 1e-8)
    parameter, optimizer = stepped(gradient)
    assert moves(parameter, optimizer, step=2) is None
    optimizer.step()
    assert moves(parameter, optimizer) is None  # of a state that was loaded
    assert moves(*stepped(gradient, torch.optim.SGD)) is None
    assert moves(*stepped(gradient, torch.optim.RMSprop)) is None


def test_parts_that_are_noise_as_a_whole_are_left_out() -> None:
    gradient = torch.full((96,), 1e-3)
    gradient[32:64] = 1e-11
    parameter, optimizer = stepped(gradient)
    read = first_moves(optimizer, {id(parameter): "bias"}, 1)
    assert read({"bias": [0.6, 1e-8, 0.6]})["bias"] < 1e-6
    assert read({"bias": [0.6, 1e-5, 0.6]})["bias"] > 1e-3


def recorded(folder: Path, bias: float, moves: dict[str, float]) -> dict[int, RankRecord]:
    step = StepRecord(
        step=1,
        optimizer=0,
        losses=(0.5,),
        gradient_norm=1.0,
        clipped_from=(),
        parameters=1,
        with_gradient=1,
        in_modules=1,
        learning_rates=(1e-3,),
        checksum=(1.0,),
        dropout=0.0,
        moves=moves,
    )
    folder.mkdir()
    tensors = {"bias": torch.tensor([1.0, 1.0 + bias], dtype=torch.float64)}
    path = records.snapshot_path(folder, 0, 0, 1)
    save(tensors, path)
    later = replace(step, step=2, moves={})
    record = RankRecord(Header(0, 1, {"bias": (2,)}), (step, later), {(0, 1): path}, path)
    return {0: record}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("far", "equal"), [(3.0, True), (6.0, False)])
def test_a_parameter_may_differ_by_what_rounding_does_to_the_first_step(
    tmp_path: Path, side: int, far: float, equal: bool
) -> None:
    move = 3e-5
    known = [{"bias": move}, {}]
    original = recorded(tmp_path / "original", 0.0, known[side])
    ours = recorded(tmp_path / "ours", far * move * 2**0.5, known[1 - side])
    judgement = verdict.judge(original, ours)
    assert (judgement.verdict is ProofVerdict.MATCH) == equal, judgement.message
    said = "of the parameters, within 4 times the rounding noise of Adam's first step"
    assert judgement.message.endswith(said) == equal
    # Not of sides that agree without that.
    alike = verdict.judge(original, recorded(tmp_path / "alike", 0.0, known[1 - side]))
    assert said not in alike.message
    without = recorded(tmp_path / "without", 0.0, {})
    differs = verdict.judge(without, recorded(tmp_path / "other", far * move * 2**0.5, {}))
    assert differs.verdict is ProofVerdict.DIFFERS


def test_a_first_step_of_noise_alone_does_not_switch_the_gate_off() -> None:
    gates = Gates(moves={"bias": 1.0})
    assert gates.parameter("bias", 0, 1) == gates.final("bias", 9) == MARGIN * CEILING
    assert gates.parameter("weight", 0, 1) == PARAMETER_GATE


def test_moves_are_written_and_read_back(tmp_path: Path) -> None:
    ours = recorded(tmp_path / "run", 0.0, {"bias": 2e-5})[0]
    text = records.line(ours.header) + "".join(map(records.line, ours.steps))
    (tmp_path / "run" / "rank0.pid1.jsonl").write_text(text)
    again = records.read(tmp_path / "run")[0]
    assert [step.moves for step in again.steps] == [{"bias": 2e-5}, {}]
