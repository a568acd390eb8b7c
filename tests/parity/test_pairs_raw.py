"""Before any engine: each port computes what its torch model does, and each fault changes that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.pairs.catalogue import FAULTS, PAIRS
from tests.parity.pairs.pair import Fault, Pair, made_inputs, randomized
from tests.parity.pairs.weights import port_outputs, port_weights, torch_outputs

pytestmark = pytest.mark.long
# Float32 keeps the first; the smallest mistake is an epsilon of 1e-5 after a norm.
WITHIN, BEYOND = 5e-6, 6e-6


def distance(pair: Pair, folder: Path, fault: Fault | None = None) -> float:
    """The largest relative L2 distance of the outputs from torch's in float64, over two inputs."""
    model = randomized(pair)
    port = pair.other("" if fault is None or fault.spoil else fault.name)
    weights = port_weights(pair, model, port, folder, fault)
    errors = []
    model.double()
    for inputs in made_inputs(pair, 2):
        wanted = torch_outputs(model, inputs)
        found = port_outputs(pair, port, weights, inputs, wide=False)
        assert len(wanted) == len(found)
        errors += [relative(a, b) for a, b in zip(wanted, found, strict=True)]
    return max(errors)


def relative(wanted: Any, found: Any) -> float:
    if wanted.shape != found.shape:  # channels last
        found = np.moveaxis(found, -1, 1)
    assert wanted.shape == found.shape
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", PAIRS)
def test_a_clean_pair_agrees(name: str, tmp_path: Path) -> None:
    assert distance(PAIRS[name], tmp_path) <= WITHIN


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_the_outputs(name: str, tmp_path: Path) -> None:
    pair, fault = FAULTS[name]
    assert distance(pair, tmp_path, fault) > BEYOND
