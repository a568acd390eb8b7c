"""Planted faults: each is found, at the layer that has it, and named where there is a cause for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.parity.causes import all_patterns
from tests.parity.pairs.catalogue import FAULTS
from tests.parity.pairs.engine import run
from tests.parity.pairs.page import page

PAGE = Path(__file__).parents[2] / "docs/parity/faults.md"
QUICK = (
    "mlp_gelu/gelu-tanh",
    "layernorm_mlp/transposed-kernel",
    "jax_softmax_pool/softmax-axis",
    "attention/mask-polarity",
    "torch_same/layernorm-eps",
)
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long, id=name) for name in FAULTS
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long_cases(
    "jax_softmax_pool/softmax-axis", "mlp_gelu/gelu-tanh", "layernorm_mlp/transposed-kernel"
)
def test_a_fault_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    pair, fault = FAULTS[name]
    found = run(pair, tmp_path, fault)
    assert not found.matches
    assert found.first is not None, found.sentence
    assert found.first.name == fault.layer, found.sentence
    if fault.cause is not None:
        assert found.causes, found.sentence
        assert found.causes[0].name == fault.cause, found.causes


def test_there_are_enough_of_them() -> None:
    assert len({fault.name for _, fault in FAULTS.values()}) >= 30
    named = [fault.cause for _, fault in FAULTS.values() if fault.cause is not None]
    assert len(named) >= 20
    assert set(named) <= {pattern.name for pattern in all_patterns()}


def test_the_page_lists_them() -> None:
    assert PAGE.read_text() == page(), "python -m tests.parity.pairs.page makes it"
