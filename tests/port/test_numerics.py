"""The proof in bfloat16: what is measured, and that it finds what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

from migrate.port.numerics import compare
from migrate.port.numerics.compare import _products, compared, located
from migrate.port.numerics.original import in_bfloat16, reference
from migrate.port.numerics.results import BFLOAT16, MIXED, Folder, Numerics, allowed
from tests.waiting import LIMIT


class Net(nn.Module):
    """A layer in the dtype of its weights, and one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8, bias=False)
        self.router = nn.Linear(8, 4, bias=False)
        self.register_buffer("table", torch.full((8,), 1 / 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        x = x + F.linear(x.float() * self.table, self.fc.weight.float()).to(x.dtype)
        return self.router(x)


class Attention(nn.Module):
    """Values of another width than keys: torch multiplies them in float32 on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x[..., :2])


# As Net, where one product is not in the dtype that it should be in.
PORT = """
import jax
import jax.numpy as jnp
from flax import linen as nn


class Config:
    pass


class Inner(nn.Module):
    dtype: object = None

    def setup(self):
        self.fc = nn.Dense(8, use_bias=False, dtype=self.dtype)

    def __call__(self, x):
        return self.fc(x)


class Net(nn.Module):
    config: Config
    dtype: object = None
    param_dtype: object = jnp.float32

    def setup(self):
        self.fc = nn.Dense(8, use_bias=False, dtype=self.dtype)
        self.router = nn.Dense(4, use_bias=False, dtype=ROUTER)

    def __call__(self, x):
        x = self.fc(x)
        kernel = self.fc.variables["params"]["kernel"].astype(jnp.float32)
        x = x + ((x.astype(jnp.float32) / 3) @ kernel).astype(x.dtype)
        return self.router(x)RESULT
"""


def inputs(*shape: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(shape, generator=torch.Generator().manual_seed(0))}


class Noisy(Net):
    """Which draws in its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(x)
        return made + torch.randn_like(made)


# What is chosen by scores that nearly tie is off by chance in a few inputs: the port's error by their number,
# the numbers that are run, and whether it matches then.
_DRAWS = [
    ({2: 1.4e-2}, [2], True),
    ({2: 9e-2, 8: 1.4e-2}, [2, 8], True),
    ({2: 9e-2, 8: 9e-2}, [2, 8], False),
]


def judged(
    tmp_path: Path,
    router: str,
    result: str = "",
    kind: type[Net] = Net,
    streams: tuple[str, ...] = (),
) -> tuple[Numerics, ...]:
    torch.manual_seed(0)
    model = kind().eval()
    package = tmp_path / ".a_port.1f.tmp"  # as it is called while it is written
    package.mkdir()
    source = PORT.replace("ROUTER", router).replace("RESULT", result)
    (package / "__init__.py").write_text(source)
    weights = {
        f"params/{name}/kernel": getattr(model, name).weight.detach().numpy().T.copy()
        for name in ("fc", "router")
    }
    save_file(weights, package / "params.safetensors")
    port = SimpleNamespace(model_class="Net", config_class="Config", same_dtype="", streams=streams)
    folder = Folder(package, package / "params.safetensors")
    example = inputs(64, 8)
    found = compared(model, [example], port, folder, tmp_path, LIMIT)
    return located(found, model, example, port, folder, tmp_path, LIMIT)


def test_a_port_with_the_dtypes_of_the_original_matches(tmp_path: Path) -> None:
    found = judged(tmp_path, "self.dtype")
    assert [one.setting for one in found] == [BFLOAT16, MIXED]
    assert [one.verdict for one in found] == ["match", "match"]
    assert all(1e-4 < one.original < 1e-2 for one in found)


def test_a_product_in_another_dtype_is_named_with_its_module(tmp_path: Path) -> None:
    for one in judged(tmp_path, "jnp.float32"):
        assert not one.matches
        assert one.verdict == "differs"
        assert any("router multiplies float32, the original bfloat16" in d for d in one.details)
        assert "output 0 is float32, the original's bfloat16" in one.details


def test_what_is_wrong_by_more_than_torch_s_own_error_differs(tmp_path: Path) -> None:
    for one in judged(tmp_path, "self.dtype", " * jnp.bfloat16(1.03)"):
        assert not one.matches
        assert one.first.startswith("what follows router")
        assert one.details[0].endswith(f"; the first module that differs: {one.first}")
    far = replace(one, output="logits").details[0]
    assert far.startswith(f"output logits: the port is {one.port:.1e} from float64")


def test_the_first_module_whose_error_is_too_large_is_named(tmp_path: Path) -> None:
    twice = "self.dtype, dot_general=lambda *a, **k: 2 * jax.lax.dot_general(*a, **k)"
    for one in judged(tmp_path, twice):
        assert one.first.startswith("router (1.0e+00, the original")


@pytest.mark.parametrize(("times", "matches"), [("", True), (" * jnp.bfloat16(1.1)", False)])
@pytest.mark.long_cases("-True")
def test_a_port_that_draws_gets_the_draws_of_the_original(
    tmp_path: Path, times: str, matches: bool
) -> None:
    drawn = f' + jax.random.normal(self.make_rng("noise"), (64, 4), x.dtype){times}'
    for one in judged(tmp_path, "self.dtype", drawn, Noisy, ("noise",)):
        assert one.matches is matches, one.verdict


def test_what_raises_is_one_line(tmp_path: Path) -> None:
    for one in judged(tmp_path, "self.dtype", ".no_such_thing"):
        assert one.verdict == "could not be compared"
        assert one.details[0].startswith("AttributeError")
        assert not one.matches


def test_products_of_the_original_are_noted_by_module() -> None:
    run = in_bfloat16(Net().eval(), inputs(4, 8))
    assert run.products == {"": {"float32"}, "fc": {"bfloat16"}, "router": {"bfloat16"}}
    assert run.dtypes == {"": "bfloat16"}


def test_an_attention_multiplies_what_it_is_given() -> None:
    run = in_bfloat16(Attention(), inputs(2, 3, 5, 4))
    assert run.products == {"": {"bfloat16"}}


def test_the_reference_has_the_rounded_weights_and_all_digits_of_what_is_not_saved() -> None:
    model, given = Net().eval(), inputs(4, 8)
    before = model.fc.weight.clone()
    found = reference(model, given)[""]
    assert str(found.dtype) == "float64"
    fc = before.bfloat16().double()
    hidden = given["x"].bfloat16().double() @ fc.T
    hidden = hidden + (hidden * model.table.double()) @ fc.T
    wanted = hidden @ model.router.weight.bfloat16().double().T
    assert torch.allclose(torch.from_numpy(found), wanted, rtol=1e-12)
    assert torch.equal(model.fc.weight, before)


def test_products_of_what_has_no_class_count_for_the_module_around_it() -> None:
    assert not _products({"a.b": {"bfloat16"}, "a": {"float32"}}, {"a": {"bfloat16", "float32"}})
    said = _products({"a.b": {"bfloat16"}}, {"a.b": {"float32"}})
    assert said == ["a.b multiplies float32, the original bfloat16"]


def test_an_original_that_does_not_run_in_bfloat16_is_not_tried(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.fc(x)
            return torch.linalg.inv(made)

    port = SimpleNamespace(same_dtype="")
    found = compared(Fixed(), [inputs(8, 8)], port, Folder(tmp_path, None), tmp_path, LIMIT)
    assert all(one.matches for one in found)
    assert found[0].verdict == "not tried"
    assert found[0].details[0].startswith("the original does not run in bfloat16 (RuntimeError")


def test_in_few_numbers_more_inputs_are_run_and_chance_is_allowed_for(tmp_path: Path) -> None:
    ran: list[int] = []

    class Lost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append(len(x))
            return self.fc(x).square().mean() if x.dim() == 2 else self.fc(x)

    port = SimpleNamespace(same_dtype="", model_class="Net", config_class="Config", streams=())
    counts = []
    for shape in ((2, 8), (2, 4, 8)):
        ran.clear()
        compared(Lost(), [inputs(*shape)] * 8, port, Folder(tmp_path, None), tmp_path, LIMIT)
        counts.append(len(ran))
    assert counts[0] == 4 * counts[1]
    assert 3 < allowed(8) < 4
    assert allowed(64) == allowed(10**9) == 1.5
    assert Numerics(BFLOAT16, "", 2e-3, 6e-3, limit=allowed(8)).matches
    assert not Numerics(BFLOAT16, "", 2e-3, 8e-3, limit=allowed(8)).matches


@pytest.mark.parametrize(("errors", "ran", "matches"), _DRAWS)
def test_an_error_that_is_too_large_is_measured_in_all_inputs(
    errors: dict[int, float],
    ran: list[int],
    matches: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def measured(*given: Any) -> tuple[tuple[Numerics, ...], int]:
        counts.append(given[-1])
        return (Numerics(BFLOAT16, "", 1e-2, errors[given[-1]]),), given[-1]

    monkeypatch.setattr(compare, "_compared", measured)
    port = SimpleNamespace(same_dtype="")
    folder = Folder(tmp_path, None)
    found = compared(nn.Identity(), [inputs(2, 8)] * 8, port, folder, tmp_path, LIMIT)
    assert (counts, found[0].matches) == (ran, matches)


@pytest.mark.parametrize("port", [float("nan"), float("inf"), 3.1e-3])
def test_only_errors_near_torch_s_own_match(port: float) -> None:
    assert not Numerics(BFLOAT16, "", 2e-3, port).matches
    assert Numerics(BFLOAT16, "", 2e-3, 2.9e-3).matches
