"""Inputs that lie channels last, and what is said where a model takes them otherwise."""

from pathlib import Path

import flax.linen as flax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from converters.errors import MisfitError
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.inputs.channels import layout_remedy
from migrate.parity.run.prepare import prepare
from migrate.parity.sides import protocol
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.side import InProcess
from migrate.parity.sides.torch.runner import TorchRunner
from migrate.progress import no_progress

TURN_BACK = "image given channels last: if taken as torch does, --channels-last-b ''"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image).mean((2, 3))


class Transposing(flax.Module):
    """Takes images as torch does."""

    strict: bool = False

    @flax.compact
    def __call__(self, image):
        if self.strict and image.shape[1] != 3:
            raise ValueError(f"image.shape[1] must be 3, image is {image.shape}")
        return flax.Conv(4, (3, 3), name="conv")(image.transpose(0, 2, 3, 1)).mean((1, 2))


class NnxNet(nnx.Module):
    def __init__(self, transposing: bool) -> None:
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))
        self.transposing = transposing

    def __call__(self, image):
        if self.transposing:
            image = image.transpose(0, 2, 3, 1)
        return self.conv(image).mean((1, 2))


@pytest.mark.parametrize(
    ("model", "kind", "channels_last", "said"),
    [
        (Transposing(), "linen", None, TURN_BACK),
        (Transposing(strict=True), "linen", None, TURN_BACK),
        (NnxNet(transposing=True), "nnx", None, TURN_BACK),
        (NnxNet(transposing=False), "nnx", (), "takes channels last, --channels-last-b image"),
    ],
)
def test_a_layout_that_does_not_fit_is_told(
    tmp_path: Path, model, kind, channels_last, said
) -> None:
    with pytest.raises((ParityError, MisfitError), match=said) as told:
        run(tmp_path, model, kind, channels_last)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("model", "kind", "channels_last"),
    [(Transposing(strict=True), "linen", ()), (NnxNet(transposing=False), "nnx", None)],
)
def test_a_layout_that_fits_runs(tmp_path: Path, model, kind, channels_last) -> None:
    run(tmp_path, model, kind, channels_last)


def run(tmp_path: Path, model, kind, channels_last) -> None:
    torch.manual_seed(0)
    a = InProcess(TorchRunner(Net().eval(), "torch", "net.py:Net"), tmp_path / "a")
    b = InProcess(JaxRunner(model, kind, "flax_net.py:Net"), tmp_path / "b")
    side = SideOptions(channels_last=channels_last)
    options = ParityOptions(inputs=("image=float32[2,3,8,8]",), count=1, b=side)
    ready = prepare(a, b, options, tmp_path, no_progress)
    b.ask(protocol.Capture(ready.b, ready.inputs, tmp_path / "dump", layers=False))


def test_other_errors_say_nothing_of_layouts() -> None:
    image, tokens = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.int64)
    assert layout_remedy("KeyError: scale", {"image": image}, ()) == ""
    assert layout_remedy("TypeError: incompatible shapes", {"tokens": tokens}, ()) == ""
    assert layout_remedy("TypeError: incompatible shapes", {"image": image}, ())
