"""The float64 reference of models that make their own tensors, or that do not take float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.utils import _pytree as pytree

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.settings import TRUTH
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides.torch.float64 import Float64Mode, in_float64
from tests.parity.sides.torch.torch_made import captured, errors, runner


class Factories(nn.Module):
    """Starts from zeros of torch's default dtype, beside float64 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.gru(x, torch.zeros(1, x.shape[0], 4).to(x.device))
        return torch.cat([out, torch.ones(3)[None, None].expand(*out.shape[:2], 3)], -1)


class ByName(nn.Module):
    """Asks for float32 by name, and rounds its states to it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros(x.shape[0], 4, dtype=torch.float32), torch.FloatTensor(x.shape[0], 4)
        start[1].zero_()
        return torch.sin(self.cell(x, start)[0].float())


class Unregistered(nn.Module):
    """Multiplies by tensors that are no buffers, and by an array of numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 4)
        self.basis = torch.randn(4, 3)
        self.scale = np.linspace(0.5, 1, 3, dtype=np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) @ self.basis @ torch.diag(torch.from_numpy(self.scale))


class Rotary(nn.Module):
    """Keeps complex numbers as a buffer: a cast to a real dtype would drop their imaginary parts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 8)
        angles = torch.arange(4.0)
        self.register_buffer("turn", torch.polar(torch.ones(4), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.fc(x).float().unflatten(-1, (4, 2)))
        return torch.view_as_real(pairs * self.turn).flatten(-2)


class Asks(nn.Module):
    """Runs in float32 only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 is wanted")
        return torch.sin(self.fc(x))


class Never(Asks):
    """Raises in any dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise TypeError("never")


def given(folder: Path, *shape: int) -> InputSet:
    random = np.random.default_rng(0)
    arrays: list[Mapping[str, Any]] = [
        {"x": random.standard_normal(shape).astype(np.float32)} for _ in range(2)
    ]
    return write_inputs(folder / "inputs", arrays)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Factories, (4, 3, 5)), (ByName, (4, 5)), (Unregistered, (4, 5)), (Rotary, (4, 5))],
)
def test_the_reference_is_float64_throughout(
    make: type[nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    side = runner(make())
    inputs = given(tmp_path, *shape)
    truth = captured(side, inputs, tmp_path / "truth", TRUTH)
    assert not truth.facts.notes
    assert all(
        truth.tensor(ref).dtype == np.float64 for call in truth.calls for ref in call.outputs
    )
    plain = captured(side, inputs, tmp_path / "plain")
    assert 0 < max(errors(plain, truth).values()) < 1e-6


def test_a_model_that_takes_no_float64_has_a_reference_that_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    side = runner(Asks())
    inputs = given(tmp_path, 4, 5)
    truth = captured(side, inputs, tmp_path / "truth", TRUTH)
    (note,) = truth.facts.notes
    assert note.startswith("the reference runs in float32 with the layers of torch.nn in float64 (")
    assert "float32 is wanted" in note
    plain = captured(side, inputs, tmp_path / "plain")
    assert 0 < max(errors(plain, truth).values()) < 1e-6


def test_training_has_the_same_reference(tmp_path: Path) -> None:
    """The gradients of a model that takes no float64 are those of its layers in float64."""
    torch.manual_seed(0)
    model = Asks()
    inputs, seeds = given(tmp_path, 4, 5), np.ones((4, 4), np.float32)
    (tmp_path / "cotangents").mkdir()
    for number in range(inputs.count):
        save_file({"output": seeds}, tmp_path / "cotangents" / f"{number:03d}.safetensors")
    runner(model).in_training(TRUTH, inputs, tmp_path / "cotangents", tmp_path / "found", 5)
    found = load_file(tmp_path / "found" / "000.safetensors")
    wide = torch.from_numpy(inputs[0]["x"]).double()
    exact = (torch.cos(model.fc.double()(wide)).mT @ wide).detach().numpy()
    error = np.linalg.norm(found["weights/fc.weight"] - exact) / np.linalg.norm(exact)
    assert error < 1e-6


def test_a_model_that_never_runs_raises_its_own_error(tmp_path: Path) -> None:
    inputs = given(tmp_path, 4, 5)
    with pytest.raises(ParityError, match="TypeError: never"):
        captured(runner(Never()), inputs, tmp_path / "truth", TRUTH)


def test_the_default_dtype_is_put_back() -> None:
    before = torch.get_default_dtype()
    with in_float64():
        assert torch.zeros(2).dtype == torch.float64
    assert torch.get_default_dtype() == before


class Experts(nn.Module):
    """Rows sorted by expert times that expert's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([2, 2, 8], dtype=torch.int32)
        return torch._grouped_mm(x, self.weight, offs=ends)


def test_products_by_expert_are_computed_in_float64_and_so_are_their_gradients() -> None:
    torch.manual_seed(0)
    model, x = Experts().double(), torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    seed = torch.randn(8, 16, dtype=torch.float64)
    with in_float64():
        made = model(x)
        made.backward(seed)
    weight = model.weight.detach()
    exact = torch.cat([x[:2] @ weight[0], x[2:] @ weight[2]]).detach()
    torch.testing.assert_close(made, exact, rtol=1e-14, atol=1e-14)
    back = torch.cat([seed[:2] @ weight[0].mT, seed[2:] @ weight[2].mT])
    torch.testing.assert_close(x.grad, back, rtol=1e-14, atol=1e-14)
    rows = x.detach()
    parts = [rows[:2].mT @ seed[:2], torch.zeros(8, 16), rows[2:].mT @ seed[2:]]
    expected = torch.stack([one.double() for one in parts])
    torch.testing.assert_close(model.weight.grad, expected, rtol=1e-14, atol=1e-14)


class Attends(nn.Module):
    """Attention of queries to keys of other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x[None], self.keys[None], self.keys[None])


def test_gradients_of_hardsigmoid_are_float64() -> None:
    """torch's kernel has 1 / 6 rounded to float32 (a relative 3e-8) for float64 too."""
    x = torch.linspace(-4.0, 4.0, 33, dtype=torch.float64, requires_grad=True)
    with in_float64():
        nn.functional.hardsigmoid(x).sum().backward()
    exact = (x.detach().abs() < 3).double() / 6
    torch.testing.assert_close(x.grad, exact, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("creates", [True, False])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: nn.Conv2d(2, 3, 3), (1, 2, 5, 5)),
        (lambda: nn.ConvTranspose1d(2, 3, 3), (1, 2, 5)),
        (lambda: nn.LSTM(4, 3), (2, 4)),
        (lambda: nn.GRU(4, 3), (2, 4)),
        (lambda: nn.PReLU(4), (2, 4)),
        (lambda: Attends(), (2, 4)),
    ],
    ids=["conv", "transposed", "lstm", "gru", "prelu", "attention"],
)
def test_functions_that_compare_dtypes_take_float32_beside_float64(
    model: Callable[[], nn.Module], shape: tuple[int, ...], creates: bool
) -> None:
    torch.manual_seed(0)
    wide, x = model().double(), torch.randn(shape)
    expected = pytree.tree_leaves(wide(x.double()))
    with in_float64() if creates else Float64Mode(creates=False):
        found = pytree.tree_leaves(wide(x))
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)type"):
        wide(x)
