"""What a rank says of the device that it ran on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from migrate.prove.record.machine import machine, tf32


@pytest.fixture
def modes() -> Iterator[None]:
    matmul, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    kept = matmul.fp32_precision, convolutions.fp32_precision
    yield
    matmul.fp32_precision, convolutions.fp32_precision = kept


def test_tf32_is_seen_by_either_interface(modes: None) -> None:
    matmul, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    matmul.fp32_precision = convolutions.fp32_precision = "ieee"
    assert "matrix products" not in tf32()
    assert "convolutions" not in tf32()
    matmul.fp32_precision = "tf32"
    assert "matrix products" in tf32()
    matmul.fp32_precision = "none"
    convolutions.fp32_precision = "tf32"
    assert "matrix products" not in tf32()
    assert "convolutions" in tf32()


def test_the_cpu_has_no_modes() -> None:
    seen = machine(torch.device("cpu"))
    assert (seen.kind, seen.modes, seen.tf32) == ("cpu", (), False)
    assert seen.versions["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_a_gpu_is_named() -> None:
    seen = machine(torch.device("cuda", 0))
    assert seen.kind == "cuda"
    assert seen.name == torch.cuda.get_device_name(0)
    assert seen.versions["cuda"] == torch.version.cuda
