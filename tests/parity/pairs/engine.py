"""A pair through the engine of `migrate parity`, both models in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from migrate.parity.compare import compare_sides
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.results import Parity
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.side import InProcess
from migrate.progress import no_progress
from tests.parity.pairs.pair import Fault, Pair, made_inputs, randomized
from tests.parity.pairs.weights import port_weights


def run(
    pair: Pair,
    folder: Path,
    fault: Fault | None = None,
    *,
    seed: int = 0,
    dtype: str = "float32",
    count: int = 8,
) -> Parity:
    """Compare the torch model (A) with its port (B)."""
    from migrate.parity.sides.torch.runner import TorchRunner

    model = randomized(pair, seed)
    port = pair.other("" if fault is None or fault.spoil else fault.name)
    settings = SideSettings(dtype=dtype)
    side_a, side_b = SideOptions(settings), SideOptions(settings, outputs_last=pair.outputs_last)
    if fault is not None and fault.spoil is not None:
        weights = port_weights(pair, model, port, folder, fault)
        state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        side_a = dataclasses.replace(side_a, weights=_saved(folder / "a.safetensors", state))
        side_b = dataclasses.replace(side_b, weights=_saved(folder / "b.safetensors", weights))
    given = folder / "given"
    given.mkdir()
    for number, inputs in enumerate(made_inputs(pair, count, seed)):
        save_file(inputs, given / f"{number:03d}.safetensors")
    options = ParityOptions(side_a, side_b, inputs=(str(given),), count=count, seed=seed)
    work = folder / "work"
    work.mkdir()
    a = InProcess(TorchRunner(model, "torch", pair.name), work)
    b = InProcess(_runner(pair, port), work)
    return compare_sides(a, b, options, work, no_progress)


def _runner(pair: Pair, port: object) -> Runner:
    if pair.kind == "torch":
        from migrate.parity.sides.torch.runner import TorchRunner

        return TorchRunner(port, "torch", f"{pair.name} again")
    from migrate.parity.sides.jax.runner import JaxRunner

    return JaxRunner(port, pair.kind, f"{pair.name} in {pair.kind}")


def _saved(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file)
    return file
