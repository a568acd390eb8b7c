"""The pairs of parity and the mistakes planted in them: a right port is fitted, a wrong one never proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from converters.errors import MisfitError
from migrate.parity.fitting.results import DIFFER, Fit
from tests.parity.fitting.follow import follow
from tests.parity.pairs.catalogue import FAULTS, PAIRS
from tests.parity.pairs.pair import Pair, made_inputs, randomized

QUICK = ("scanned", "tied_lm")
QUICK_FAULTS = ("mlp_gelu/gelu-tanh", "scanned/layernorm-eps")
# No differences in what can be computed: blocks that change places with their weights, rows in another order
# behind a flattened image, and what only float32 rounds.
THE_SAME = ("encoder_pre/layers-swapped", "conv_bn/flatten-order", "large_mean/fast-variance")


def fitted(pair: Pair, fault: str, work: Path) -> Fit:
    inputs = made_inputs(pair, 2)
    floating = all(array.dtype.kind == "f" for array in inputs[0].values())
    return follow(
        randomized(pair),
        pair.other(fault),
        inputs,
        work,
        kind=pair.kind,
        channels_last=pair.channels_last,
        example=[array.shape for array in inputs[0].values()] if floating else None,
    )


def marked(name: str, quick: tuple[str, ...]) -> object:
    return pytest.param(name, marks=() if name in quick else pytest.mark.long, id=name)


@pytest.mark.parametrize(
    "name", [marked(name, QUICK) for name, pair in PAIRS.items() if pair.kind in ("linen", "nnx")]
)
@pytest.mark.long_cases("tied_lm")
def test_a_right_port_is_fitted(name: str, tmp_path: Path) -> None:
    found = fitted(PAIRS[name], "", tmp_path)
    assert found.proven, found.sentence


@pytest.mark.parametrize(
    "name",
    [
        marked(name, QUICK_FAULTS)
        for name, (pair, fault) in FAULTS.items()
        if pair.kind in ("linen", "nnx") and fault.spoil is None and name not in THE_SAME
    ],
)
def test_a_mistake_is_never_proven(name: str, tmp_path: Path) -> None:
    pair, fault = FAULTS[name]
    try:
        found = fitted(pair, fault.name, tmp_path)
    except MisfitError:
        return  # a layer that torch has and the port has not
    assert not found.proven, found.sentence
    assert DIFFER in found.sentence


def test_there_are_enough_of_them() -> None:
    planted = [
        fault
        for pair, fault in FAULTS.values()
        if pair.kind in ("linen", "nnx") and fault.spoil is None
    ]
    assert len(planted) >= 60
