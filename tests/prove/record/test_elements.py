"""Elements whose gradients are rounding are found, by what the optimizer divides them by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from migrate.prove.record.noise.elements import Elements, gradients
from migrate.prove.recording import elements

NAMES = ["bias"]


def stepped(kind: Any, *steps: torch.Tensor) -> tuple[Elements, torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.zeros_like(steps[0]))
    optimizer = kind([parameter], lr=1e-3)
    seen = Elements()
    for gradient in steps:
        parameter.grad = gradient.clone()
        optimizer.step()
        seen.stepped(optimizer)
    return seen, parameter


def masks(folder: Path, seen: Elements, parameter: torch.Tensor, rounding: float) -> list[int]:
    path = folder / "elements.safetensors"
    elements.save(seen.least([parameter], NAMES), {}, path)
    found = elements.moved(path, {"bias": rounding})
    return [int(index) for index in found["bias"].nonzero()] if found else []


ADAPTIVE = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
]


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_an_element_of_rounding_is_left_out_for_good(kind: Any, tmp_path: Path) -> None:
    small = torch.ones(32)
    small[5], small[7] = 1e-4, 0.0
    seen, parameter = stepped(kind, small, torch.ones(32))
    assert masks(tmp_path, seen, parameter, 1e-3) == [5]
    assert masks(tmp_path, seen, parameter, 1e-6) == []


def test_an_element_that_was_large_before_is_not_moved_far(tmp_path: Path) -> None:
    small = torch.ones(32)
    small[5] = 1e-4
    seen, parameter = stepped(torch.optim.Adam, torch.ones(32), small)
    assert masks(tmp_path, seen, parameter, 1e-3) == []


def test_sgd_divides_by_nothing() -> None:
    seen, parameter = stepped(torch.optim.SGD, torch.ones(4))
    assert seen.least([parameter], NAMES) == {}


def test_what_rounding_did_to_a_gradient(tmp_path: Path) -> None:
    paths = []
    for index, change in enumerate((0.0, 1e-3)):
        parameter = torch.nn.Parameter(torch.zeros(300, 300))
        parameter.grad = torch.ones(300, 300) * (1 + change)
        kept = gradients([parameter], NAMES)
        assert kept["bias"].numel() <= 65_536
        paths.append(tmp_path / f"{index}.safetensors")
        elements.save({}, kept, paths[-1])
    assert elements.roundings(*paths)["bias"] == pytest.approx(1e-3, rel=1e-3)
