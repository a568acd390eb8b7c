"""No false alarm: a torch model and its correct port match."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.parity.ground.results import LayerVerdict, Parity
from tests.parity.pairs.catalogue import PAIRS
from tests.parity.pairs.engine import run

# One of each kind of port; the others are long.
QUICK = ("mlp", "mlp_gelu", "conv_bn", "jax_mlp", "torch_same")
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long, id=name) for name in PAIRS
]
# A layer that only one of the models has as such is no difference.
FINE = (LayerVerdict.MATCH, LayerVerdict.ALONE)
# Models that do not run in bfloat16: an average that leaves padding out, and nnx's embeddings and batch
# norms, give float32, and what follows is promoted.
IN_FLOAT32 = ("resnet_mini", "pooling", "gru", "llama_mini")


def require_match(found: Parity) -> None:
    require_no_difference(found)
    assert found.matches, found.sentence


def require_no_difference(found: Parity) -> None:
    off = {layer.name: str(layer.verdict) for layer in found.layers if layer.verdict not in FINE}
    assert off == {}
    assert found.causes == ()
    assert found.first is None


def test_there_are_enough_pairs_of_each_kind() -> None:
    assert len(PAIRS) >= 30
    assert {pair.kind for pair in PAIRS.values()} == {"linen", "nnx", "jax", "torch"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long_cases("conv_bn")
def test_a_correct_port_matches(name: str, tmp_path: Path) -> None:
    require_match(run(PAIRS[name], tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PAIRS)
def test_with_other_weights_and_inputs_and_in_bfloat16(
    name: str, seed: int, dtype: str, tmp_path: Path
) -> None:
    found = run(PAIRS[name], tmp_path, seed=seed, dtype=dtype)
    if dtype == "float32" or name not in IN_FLOAT32:
        require_match(found)
        return
    require_no_difference(found)
    failed = [part.name for part in found.sections if not all(row.passed for row in part.checks)]
    assert failed == ["B in bfloat16 (most of its layers ran in float32)"]
