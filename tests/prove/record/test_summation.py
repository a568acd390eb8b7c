"""Another order of summation changes the bits of a model, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from migrate.prove.record.noise import reductions, rounding, summation
from migrate.prove.recording.records import RECORD_DIRECTORY

REPLACED = (
    *("linear", "conv1d", "conv2d", "conv3d", "batch_norm", "scaled_dot_product_attention"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *reductions.loss_names(),
)


def keep_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (torch, torch.Tensor):
        for name in ("sum", "mean"):
            monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REPLACED:
        monkeypatch.setattr(nn.functional, name, getattr(nn.functional, name))
    keep_sums(monkeypatch)
    # Only the order is looked at here.
    monkeypatch.setattr(rounding, "install", lambda run, half: None)
    torch.manual_seed(0)


def gradients(model: nn.Module, *shape: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(torch.randn(shape)).square().mean().backward()
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 8),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(32, 8))


def sequence() -> nn.Module:
    return nn.Sequential(nn.Conv1d(6, 12, 3), nn.ReLU(), nn.Conv1d(12, 4, 3))


@pytest.mark.parametrize(
    ("make", "shape"),
    [(convolutions, (4, 3, 12, 12)), (transformer, (4, 12, 32)), (sequence, (5, 6, 20))],
)
@pytest.mark.parametrize("recording", ["", "records3", "records4"])
def test_the_bits_change_and_the_values_do_not(
    make: type[nn.Module], shape: list[int], recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORD_DIRECTORY, recording)
    model = make()
    before = gradients(model, *shape)
    assert all(map(torch.equal, before, gradients(model, *shape)))
    summation.install()
    after = gradients(model, *shape)
    assert not all(map(torch.equal, before, after))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-6)


def test_running_statistics_stay() -> None:
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    batch = torch.randn(6, 4)
    expected = first(batch)
    summation.install()
    torch.testing.assert_close(second(batch), expected)
    torch.testing.assert_close(dict(second.named_buffers()), dict(first.named_buffers()))


def test_vectors_unbatched_images_and_subclasses_are_left_as_they_are() -> None:
    class Named(torch.Tensor):
        pass

    vector, image, weight = torch.randn(3), torch.randn(3, 5, 5), torch.randn(2, 3)
    kernel = torch.randn(4, 3, 3, 3)
    named = torch.randn(2, 3).as_subclass(Named)
    functional = nn.functional
    expected = functional.linear(vector, weight), functional.conv2d(image, kernel)
    product = functional.linear(named, weight)
    summation.install()
    assert torch.equal(functional.linear(vector, weight), expected[0])
    assert torch.equal(functional.conv2d(image, kernel), expected[1])
    assert torch.equal(functional.linear(named, weight), product)


def test_each_run_of_a_proof_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for recording in ("records3", "records4"):
        with monkeypatch.context() as patched:
            patched.setenv(RECORD_DIRECTORY, recording)
            for name in REPLACED:
                patched.setattr(nn.functional, name, getattr(nn.functional, name))
            torch.manual_seed(0)
            model = convolutions()
            summation.install()
            found.append(gradients(model, 4, 3, 12, 12))
    assert not all(map(torch.equal, *found))
