"""The limits are right: real torch modules keep them with a margin, and mistakes exceed them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.kinds import OperationClass, does_nothing, family, operation
from migrate.parity.ground.results import Errors
from migrate.parity.judge.metrics import Measurement
from migrate.parity.judge.profiles import (
    PROFILES,
    Profile,
    choose_profile,
    find_profile,
    limits_as_text,
)

F32, BF16 = find_profile("f32-highest"), find_profile("bf16")
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4096, 64), (4, 16, 4096)),
    "Conv2d": (lambda: nn.Conv2d(32, 32, 3), (2, 32, 12, 12)),
    "LayerNorm": (lambda: nn.LayerNorm(768), (4, 16, 768)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(32).eval(), (4, 32, 8, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(4, 32), (4, 32, 8, 8)),
    "Softmax": (lambda: nn.Softmax(-1), (4, 16, 512)),
    "GELU": (nn.GELU, (4, 64, 256)),
    "Tanh": (nn.Tanh, (4, 64, 256)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 8, 16, 16)),
    "LSTM": (lambda: nn.LSTM(64, 64, batch_first=True), (4, 32, 64)),
}


def own_error(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, wrong: nn.Module | None = None
) -> tuple[Measurement, Errors]:
    """Of a module in float64 against the same, or a wrong one, in a lower precision."""
    truth = copy.deepcopy(module).double()
    mine = copy.deepcopy(module if wrong is None else wrong).to(dtype)
    measured = Measurement(str(dtype).removeprefix("torch."))
    for number in range(3):
        x = torch.randn(shape)
        with torch.no_grad():
            t, y = truth(x.double()), mine(x.to(dtype))
        t, y = (one[0] if isinstance(one, tuple) else one for one in (t, y))
        measured.add(number, t.numpy(), y.float().numpy())
    return measured, measured.errors()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("profile", "dtype"), [(F32, torch.float32), (BF16, torch.bfloat16)])
def test_correct_modules_keep_the_limits(
    profile: Profile, dtype: torch.dtype, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    make, shape = CASES[kind]
    measured, found = own_error(make(), shape, dtype)
    limit = profile.local(operation(kind), steps=shape[1])
    assert found.relative_l2 < 0.9 * limit
    if kind != "Softmax" or profile is F32:  # its largest element is far above its RMS
        assert found.max_over_rms < max(
            profile.peak_limit(limit, found.elements), limit * measured.beside
        )


@pytest.mark.parametrize(
    ("right", "wrong", "shape"),
    [
        (nn.LayerNorm(768), nn.LayerNorm(768, eps=1e-6), (4, 16, 768)),
        (nn.LayerNorm(768), nn.LayerNorm(768, eps=1e-12), (4, 16, 768)),
        (nn.BatchNorm2d(32).eval(), nn.BatchNorm2d(32, eps=1e-6).eval(), (4, 32, 8, 8)),
        (nn.BatchNorm2d(32).eval(), nn.BatchNorm2d(32, eps=1e-3).eval(), (4, 32, 8, 8)),
        (nn.GELU(), nn.GELU("tanh"), (4, 64, 256)),
        (nn.ReLU(), nn.LeakyReLU(1e-4), (4, 64, 256)),
    ],
)
def test_mistakes_exceed_the_limits_in_float32(
    right: nn.Module, wrong: nn.Module, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    _, clean = own_error(right, shape, torch.float32)
    _, found = own_error(right, shape, torch.float32, wrong)
    kind = operation(type(right).__name__)
    assert found.relative_l2 > 3 * F32.local(kind)
    assert found.relative_l2 > 2 * F32.ratio.value * max(clean.relative_l2, F32.floor)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", PROFILES)
def test_every_limit_tells_its_source(name: str, strict: bool) -> None:
    lines = limits_as_text(find_profile(name, strict=strict))
    assert lines[0].startswith(f"{name} (strict): " if strict else f"{name}: ")
    for line in lines[2:]:
        what, _, source = line.partition(": ")
        assert " ≤ " in what
        assert len(source) > 5
    assert sum(operation.value in " ".join(lines) for operation in OperationClass) >= 7


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(ParityError, match="no profile f16; take one of f32-highest, f32-high, tpu"):
        find_profile("f16")


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        ({}, {}, "f32-highest"),
        # A CPU has one precision, whatever is declared, unless it is emulated.
        ({}, {"precision": "default"}, "f32-highest"),
        ({}, {"precision": "default", "emulated": True}, "tpu-default"),
        ({}, {"precision": "default", "device": "TPU v5 lite"}, "tpu-default"),
        ({"precision": "high", "device": "TPU v4"}, {"precision": "highest"}, "f32-high"),
        ({"dtype": "bfloat16"}, {"precision": "default", "device": "TPU v4"}, "bf16"),
    ],
)
def test_the_profile_follows_from_what_runs(
    a: dict[str, object], b: dict[str, object], name: str
) -> None:
    facts = [
        RunFacts(**{"framework": "jax", "target": "x", "device": "cpu", "dtype": "float32"} | one)  # type: ignore[arg-type]
        for one in (a, b)
    ]
    assert choose_profile(*facts).name == name


def test_how_limits_grow() -> None:
    assert F32.accumulated(0) == F32.accumulated(1) == 1e-6
    assert F32.accumulated(16) == pytest.approx(4e-6)
    assert F32.local(OperationClass.RECURRENT, steps=100) == pytest.approx(1e-5)
    assert F32.local(OperationClass.MOVEMENT) == 2**-24
    assert F32.local(OperationClass.POSITIONAL, steps=512) == pytest.approx(512 * 2**-23)
    assert BF16.local(OperationClass.POSITIONAL, steps=512) == 5e-3
    assert F32.peak_limit(1e-6, 1_000_000) == pytest.approx(6e-6 * 5.2565, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("LlamaRMSNorm", OperationClass.NORMALIZATION),
        ("BatchNorm2d", OperationClass.NORMALIZATION),
        ("Conv1D", OperationClass.MATMUL),
        ("DenseGeneral", OperationClass.MATMUL),
        ("MultiHeadDotProductAttention", OperationClass.MATMUL),
        ("OptimizedLSTMCell", OperationClass.RECURRENT),
        ("NewGELUActivation", OperationClass.ELEMENTWISE),
        ("LlamaRotaryEmbedding", OperationClass.POSITIONAL),
        ("Embed", OperationClass.MOVEMENT),
        ("AdaptiveMaxPool2d", OperationClass.MOVEMENT),
        ("BertEmbeddings", OperationClass.COMPOSITE),
        ("Sequential", OperationClass.COMPOSITE),
    ],
)
def test_classes_of_operations(kind: str, what: OperationClass) -> None:
    assert operation(kind) is what


def test_words_of_one_family() -> None:
    assert family("Dense") == family("Linear")
    assert family("BatchNorm2d") == family("BatchNorm")
    assert family("SiLU") != family("GELU")
    assert does_nothing("Dropout")
    assert does_nothing("DropPath")
    assert not does_nothing("Linear")
