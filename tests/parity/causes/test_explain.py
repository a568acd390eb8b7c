"""What `explain` does beside naming a cause: it changes nothing, ends in time, and does not guess."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import pytest
import torch
from torch import nn

from migrate.parity.causes import all_patterns, explain
from migrate.parity.causes.frame.pattern import FaultExample, Pattern, normal
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.ground.alignment import LayerAlignment
from migrate.parity.ground.settings import SideSettings
from tests.waiting import LIMIT

PATTERNS = {pattern.name: pattern for pattern in all_patterns()}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


class TanhMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def as_tanh(twin: nn.Module) -> nn.Module:
    twin.__class__ = TanhMlp
    return twin


class Small(nn.Module):
    """A dense layer whose bias is a hundredth of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.fc.bias.data *= 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


ONE_PASS = SideSettings(precision="default")
MLP = FaultExample(Mlp, as_tanh, normal(4, 8), "tanh")


def test_there_are_enough_causes_that_examples_show() -> None:
    assert len(PATTERNS) >= 50
    assert all(pattern.examples for pattern in PATTERNS.values())


def test_the_model_is_left_as_it_was(compare: Any) -> None:
    compared = compare(PATTERNS["other-layers-weights"].examples[0])
    before = {name: tensor.clone() for name, tensor in compared.model.state_dict().items()}
    inside = {name: set(vars(module)) for name, module in compared.model.named_modules()}
    functions = dict(vars(nn.functional))
    assert compared.causes()
    after = compared.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert inside == {name: set(vars(module)) for name, module in compared.model.named_modules()}
    assert functions == dict(vars(nn.functional))


def test_a_side_without_layers_is_explained_by_its_outputs(compare: Any) -> None:
    compared = compare(MLP)
    bare = dataclasses.replace(
        compared.context, local=None, alignment=LayerAlignment((), compared.alignment.outputs)
    )
    causes = explain(compared.model, bare)
    assert causes[0].name == "gelu-form"


def test_without_a_local_dump_the_run_as_it_is_tells(compare: Any) -> None:
    compared = compare(dataclasses.replace(MLP, layer="down", locally=False))
    causes = explain(compared.model, dataclasses.replace(compared.context, local=None))
    assert causes[0].name == "gelu-form"
    assert "in what down is given" in causes[0].evidence


def test_evidence_has_numbers_and_the_side_its_name(compare: Any) -> None:
    compared = compare(PATTERNS["norm-eps"].examples[0])
    (cause,) = explain(compared.model, dataclasses.replace(compared.context, side="A"))
    assert cause.text == "A adds eps 1e-06, the truth 1e-05"
    assert "e-08 from A's instead of" in cause.evidence or "e-07 from A's" in cause.evidence


def test_where_no_variant_fits_settings_that_differ_are_likely(compare: Any) -> None:
    compared = compare(PATTERNS["token-pooling"].examples[0])
    odd = dataclasses.replace(
        compared.context,
        settings={"epsilon": 1e-6, "use_bias": False},
        truth_settings={"eps": 1e-5, "bias": True},
    )
    notes: list[str] = []
    causes = explain(compared.model, odd, seconds=0.0, note=notes.append)
    (note,) = notes
    assert re.match(
        r"the search for causes ended after 0 s: \S+, \S+, \S+ and \d+ more not tried", note
    )
    assert [(cause.name, cause.certain) for cause in causes] == [
        ("missing-bias", False),
        ("norm-eps", False),
    ]
    assert causes[1].text == "B has eps 1e-06, the truth 1e-05"


class Two(nn.Module):
    """Two faults at once: no single variant gives what the side gives."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(x))


class TwoFaults(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.norm(x)) * 1.1 + 0.01 * x**3


def test_what_nothing_explains_is_not_explained(compare: Any) -> None:
    def faulty(twin: nn.Module) -> nn.Module:
        twin.__class__ = TwoFaults
        return twin

    assert compare(FaultExample(Two, faulty, normal(4, 8), "")).causes() == ()


def test_no_variant_is_tried_after_the_time(compare: Any, monkeypatch: Any) -> None:
    compared = compare(MLP)
    plain, tries = Mlp.forward, []

    def forward(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        tries.append(1)
        return plain(self, x)

    monkeypatch.setattr(Mlp, "forward", forward)
    explain(compared.model, compared.context, seconds=LIMIT)
    whole = len(tries)
    tries.clear()
    # Each try takes a second, by a clock of our own.
    monkeypatch.setattr(time, "monotonic", lambda: float(len(tries)))
    explain(compared.model, compared.context, seconds=whole / 4)
    assert 0 < len(tries) <= whole / 2


@pytest.mark.parametrize(
    "name", ["mean-kept", "kernel-transposed", "attention-scale", "norm-groups", "missing-term"]
)
def test_under_one_pass_of_bfloat16_causes_are_found_too(name: str, compare: Any) -> None:
    """The replays round as the side does: what is left is the fault."""
    example = PATTERNS[name].examples[0]
    assert compare(example, clean=True, settings=ONE_PASS).causes() == ()
    assert compare(example, settings=ONE_PASS).causes()[0].name == name


def test_a_small_fault_is_found_under_one_pass_of_bfloat16(compare: Any) -> None:
    def faulty(twin: nn.Module) -> nn.Module:
        twin.fc.bias.data *= 0
        return twin

    compared = compare(
        FaultExample(Small, faulty, normal(4, 64), "", layer="fc"), settings=ONE_PASS
    )
    assert compared.causes()[0].name == "missing-bias"


def test_a_pattern_without_a_page_or_an_example_is_none() -> None:
    with pytest.raises(TypeError, match="What it is"):

        class Silent(Pattern):
            """A title."""

            name = "silent"

            def variants(self, scene: Scene) -> Any:
                return ()

    with pytest.raises(TypeError, match="no example"):

        class Bare(Pattern):
            """A title.

            **What it is.** Nothing. **What to do.** Nothing.
            """

            name = "bare"

            def variants(self, scene: Scene) -> Any:
                return ()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_clean_examples_have_no_cause_whatever_the_seed(
    name: str, dtype: str, compare: Any
) -> None:
    for example in PATTERNS[name].examples:
        for seed in range(1, 5):
            settings = SideSettings(dtype=dtype)
            assert compare(example, clean=True, settings=settings, seed=seed).causes() == ()
