"""A torch model and a Flax one in this process, and what a fit says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.fitting.fit import fit
from migrate.parity.fitting.results import Fit
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides import protocol
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.side import InProcess
from migrate.parity.sides.torch.runner import TorchRunner

Array = np.ndarray[Any, Any]


def follow(
    torch_model: Any,
    flax_model: Any,
    inputs: Sequence[Mapping[str, Array]],
    work: Path,
    *,
    kind: Any = "linen",
    channels_last: tuple[str, ...] = (),
    drop: Sequence[str] = (),
    example: Sequence[tuple[int, ...]] | None = None,
    start: Any = None,
) -> Fit:
    """The fit of the one's weights to the other; the mapping is in `work/mapping.yaml`."""
    work.mkdir(parents=True, exist_ok=True)
    torch_side = InProcess(TorchRunner(torch_model, "torch", "torch"), work)
    flax_side = InProcess(JaxRunner(flax_model, kind, "flax", start), work)
    given = write_inputs(work / "inputs", list(inputs))
    settings = SideSettings(transposed=channels_last)
    torch_side.ask(protocol.Prepare(SideSettings(), given))
    flax_side.ask(protocol.Prepare(settings, given))
    return fit(
        torch_side,
        flax_side,
        given,
        settings,
        work / "fit",
        work / "mapping.yaml",
        drop=drop,
        example=example,
    )
