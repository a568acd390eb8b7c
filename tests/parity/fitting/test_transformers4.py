"""Weights of today's transformers, by running, in the Flax models that transformers 4 had.

`make test-flax4` makes the environment that they need, `.venv-flax4`, and runs this.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.target_models.transformers4 import TYPES
from converters.errors import ConversionError
from migrate.parity.ground.errors import ParityError
from migrate.parity.run.fitted import Models, fit_models
from migrate.progress import no_progress

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("FLAX4_PYTHON", ROOT / ".venv-flax4/bin/python"))
FILE = ROOT / "benchmarks" / "target_models" / "transformers4.py"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-flax4 makes the environment"),
]
# Why not: of torch's model, or where Flax's parts from it.
_SINGLE = "no further can be seen, as the target keeps numbers in float32"
UNPROVEN: dict[str, str] = {
    "marian": _SINGLE,
    "pegasus": _SINGLE,
    "wav2vec2": "is made of several tensors by torch's parametrizations.weight_norm",
    "xglm": "in float64, which the comparison needs",
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type(name: str, tmp_path: Path) -> None:
    ours, theirs = (f"{FILE}:{side}({name!r})" for side in ("ours", "theirs"))
    its = TYPES[name]
    models = Models(ours, theirs, tuple(its.inputs.split("; ")), its.drop, python=str(PYTHON))
    try:
        found = fit_models(models, tmp_path / "mapping.yaml", no_progress)
    except (ParityError, ConversionError) as error:
        said, proven = str(error), False
    else:
        said, proven = found.sentence, found.proven
    assert proven == (name not in UNPROVEN), said
    assert UNPROVEN.get(name, "") in said, said
