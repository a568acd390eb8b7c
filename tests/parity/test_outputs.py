"""Outputs are compared as they are: another layout or another name matches only where it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from migrate.cli.parity import _options, parity
from migrate.parity.compare import compare, compare_sides
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.results import Parity, ParityVerdict
from migrate.parity.run.recorded import record
from migrate.parity.sides.side import InProcess
from migrate.parity.sides.target import parse_target
from migrate.parity.sides.torch.runner import TorchRunner
from migrate.progress import no_progress


class Net(nn.Module):
    """What comes out of it is made of one tensor, in one of several ways."""

    def __init__(self, give: Any = lambda y: y) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)
        self.give = give

    def forward(self, x: torch.Tensor) -> Any:
        return self.give(self.layer(x))


def compared(
    folder: Path, a: Any, b: Any, shape: str = "2,6", sides: Any = None, **options: Any
) -> Parity:
    """Net against Net, each with what it makes of its tensor."""
    folder.mkdir(exist_ok=True)
    of_sides = {"a": SideOptions(), "b": sides or SideOptions()}
    given = ParityOptions(**of_sides, inputs=(f"x=float32[{shape}]",), count=2, **options)
    first, second = (
        InProcess(TorchRunner(Net(give), "torch", name), folder)
        for name, give in (("A", a), ("B", b))
    )
    return compare_sides(first, second, given, folder, no_progress)


def same(y: Any) -> Any:
    return y


def notes(found: Parity) -> str:
    """What is said of the outputs."""
    section = found.sections[0]
    return "; ".join((*(check.note for check in section.checks), *section.notes))


DIFFERENT = {
    "an axis moved": (same, lambda y: y.T, "2,6", "A.0[a,b]=B.0[b,a]"),
    "transposed square": (same, lambda y: y.T, "6,6", "A.0[a,b]=B.0[b,a]"),
    "merged axes": (same, lambda y: y.reshape(-1), "2,6", "A.0[a,b]=B.0[a*b]"),
    "batch and length": (same, lambda y: y.transpose(0, 1), "4,4,6", "A.0[a,b,c]=B.0[b,a,c]"),
    "apart": (
        lambda y: y,
        lambda y: y.unflatten(-1, (2, 3)).transpose(1, 2),
        "4,6",
        "A.0[a,b*c]=B.0[a,c,b]",
    ),
    "a tuple": (same, lambda y: (y,), "2,6", "A.0=B.0"),
    "a dict": (same, lambda y: {"y": y}, "2,6", "A.0=B.y"),
    "other keys": (lambda y: {"x": y}, lambda y: {"y": y}, "2,6", "A.x=B.y"),
    "something more": (same, lambda y: (y, {"h": y.mean(1)}), "2,6", "--skip-output B.1.h"),
    "loss and logits": (
        lambda y: {"loss": y.mean(), "logits": y},
        lambda y: {"logits": y},
        "2,6",
        "--skip-output A.loss",
    ),
    "two, exchanged": (
        lambda y: (y, 3 * y + 1),
        lambda y: (3 * y + 1, y),
        "2,6",
        "A.1=B.0",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_outputs_are_no_match(name: str, tmp_path: Path) -> None:
    a, b, shape, remedy = DIFFERENT[name]
    found = compared(tmp_path, a, b, shape)
    assert not found.matches, found.sentence
    assert not found.sections[0].passed
    assert remedy in notes(found)


SAID: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "an axis moved": (same, lambda y: y.T, "2,6", {"outputs": ("A.0[b,c]=B.0[c,b]",)}),
    "by the other side": (same, lambda y: y.T, "2,6", {"outputs": ("B[c,b]=A[b,c]",)}),
    "transposed square": (same, lambda y: y.T, "6,6", {"outputs": ("A.0[a,b]=B.0[b,a]",)}),
    "merged axes": (same, lambda y: y.reshape(-1), "2,6", {"outputs": ("A.0[a,b]=B.0[a*b]",)}),
    "a one more": (same, lambda y: y[:, None], "2,6", {"outputs": ("A.0[a,b]=B.0[a,1,b]",)}),
    "apart": (
        same,
        lambda y: y.unflatten(-1, (2, 3)).transpose(1, 2),
        "4,6",
        {"outputs": ("A.0[a,b*c]=B.0[a,c,b]",)},
    ),
    "other keys": (lambda y: {"x": y}, lambda y: {"y": y}, "2,6", {"outputs": ("A.x=B.y",)}),
    "something more": (
        same,
        lambda y: (y, {"h": y.mean(1)}),
        "2,6",
        {"outputs": ("A=B.0",), "skip_outputs": ("B.1.h",)},
    ),
    "left out on both": (
        lambda y: {"y": y, "h": y},
        lambda y: {"y": y, "h": 2 * y},
        "2,6",
        {"skip_outputs": ("A.h",)},
    ),
    "channels last": (
        same,
        lambda y: y.movedim(1, -1),
        "2,3,4,6",
        {"sides": SideOptions(outputs_last=("",))},
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_to_be_the_same_is_compared_so(name: str, tmp_path: Path) -> None:
    a, b, shape, options = SAID[name]
    found = compared(tmp_path, a, b, shape, **options)
    assert found.matches, (found.sentence, notes(found))


def test_what_is_said_is_shown(tmp_path: Path) -> None:
    found = compared(
        tmp_path, same, lambda y: {"z": y.T}, "2,6", outputs=("A[b,c]=B.z[c,b]",), gradients=True
    )
    assert found.matches, found.sentence
    assert "B: output z, axes 1, 0" in notes(found)
    whole = next(layer for layer in found.layers if not layer.name)
    assert whole.b is not None
    assert [one.text for one in whole.b.layouts] == ["axes 1, 0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": ("A.0=B.oud",)}, "did you mean out?"),
        ({"outputs": ("A.0=A.1",)}, "not a pair of an output of A and an output of B"),
        ({"outputs": ("A.0[a,b]=B.out[a]",)}, "same names of axes"),
        ({"outputs": ("A.0=B.out", "A.0=B.y")}, "A.0 appears twice"),
        ({"skip_outputs": ("B.h",)}, "B has no output h"),
        ({"skip_outputs": ("A", "B.out")}, "no output of B is compared"),
    ],
)
def test_what_is_said_wrongly_is_one_line(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ParityError, match=message.replace("?", r"\?")) as told:
        compared(tmp_path, same, lambda y: {"out": y}, **options)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("x,output", ("x",), ("",)),
        ("output.image,y", ("y",), ("image",)),
        # Outputs alone say nothing of inputs: those that lie so are still found.
        ("output", None, ("",)),
        ("", (), ()),
    ],
)
def test_channels_last_names_inputs_and_outputs(
    text: str, inputs: tuple[str, ...] | None, outputs: tuple[str, ...]
) -> None:
    words = ["a", "b", "--channels-last-b", text, "--outputs", "A=B.x", "--skip-output", "B.h"]
    given = parity.make_context("parity", words).params
    options = _options(given)
    assert (options.b.channels_last, options.b.outputs_last) == (inputs, outputs)
    assert options.a.channels_last is None
    assert options.rules("B").mine == "A"
    assert options.rules("B").skipped == (("B", "h"),)


def test_a_truth_of_nan_is_not_finite(tmp_path: Path) -> None:
    found = compared(tmp_path, torch.log, torch.log)
    assert found.verdict is ParityVerdict.NOT_FINITE
    assert not found.matches
    assert "matches" not in found.sentence
    assert "NaN in float64" in found.sentence


def test_gradients_are_of_what_both_give(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        lambda y: {"y": y, "logits": 3 * y},
        lambda y: {"y": y},
        gradients=True,
        train=2,
        skip_outputs=("A.logits",),
    )
    assert found.matches, found.sentence
    assert [section.name for section in found.sections] == ["outputs", "gradients", "training"]


NETS = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)
    def forward(self, x):
        return self.layer(x)

class Named(Plain):
    def forward(self, x):
        return {"logits": self.layer(x)}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("a", "b", "pair"),
    [
        ("dump:{}/dump", "{}/net.py:Named", "A=B.logits"),
        ("{}/net.py:Named", "dump:{}/dump", "A.logits=B"),
    ],
)
def test_a_dump_is_held_to_the_same(a: str, b: str, pair: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETS)
    inputs = ("x=float32[2,6]",)
    plain = parse_target(f"{tmp_path}/net.py:Plain")
    recorded = ParityOptions(inputs=inputs, count=2, keep=tmp_path / "dump")
    record(plain, recorded, no_progress)
    first, second = (parse_target(text.format(tmp_path)) for text in (a, b))
    for said in ((), (pair,)):
        found = compare(first, second, ParityOptions(count=2, outputs=said), no_progress)
        assert found.matches is bool(said), found.sentence


def test_layers_are_compared_where_no_output_can_be(tmp_path: Path) -> None:
    found = compared(tmp_path, same, lambda y: {"a": y.T, "b": y[0]}, gradients=True)
    assert found.verdict is ParityVerdict.PARTLY
    assert found.sentence.startswith("A and B do not return the same outputs: ")
    assert [section.name for section in found.sections] == ["outputs"]
    assert found.layers[0].name == "layer"
