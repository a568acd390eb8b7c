"""Random state of this process: all generators that a training loop draws from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from shims._shared import world
from shims._shared.tpu_generator import tpu_generator


def get_state(loader: object = None) -> dict[str, Any]:
    """Return the states of the generators of Python, numpy, torch, CUDA, XLA, torch_tpu and the loader.

    The result holds plain containers, numbers and CPU tensors, so a checkpoint can store it.
    """
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": (version, list(numbers), gauss),
        "torch": torch.get_rng_state(),
        "loader": [generator.get_state() for generator in generators_of(loader)],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if world.xla_runs():
        state["xla"] = sys.modules["torch_xla"].core.xla_model.get_rng_state()
    if world.torch_tpu_runs():
        state["tpu"] = tpu_generator().get_state()
    return state


def set_state(state: dict[str, Any], loader: object = None) -> None:
    """Restore the generators to the state returned by `get_state`.

    States of a device type that is not in use here are ignored: another type draws other numbers
    anyway.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    set_generators(loader, state["loader"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), *rest))
    if (
        "cuda" in state
        and torch.cuda.is_available()
        # If the CPU answers for CUDA, its state has another size than a GPU's.
        and torch.cuda.get_rng_state().shape == state["cuda"].shape
    ):
        torch.cuda.set_rng_state(state["cuda"])
    if "xla" in state and world.xla_runs():
        sys.modules["torch_xla"].core.xla_model.set_rng_state(state["xla"])
    if "tpu" in state and world.torch_tpu_runs():
        tpu_generator().set_state(state["tpu"])


def set_generators(loader: object, states: list[torch.Tensor]) -> None:
    """Restore only the loader's generators. A loader of None is ignored."""
    if loader is not None:
        for generator, state in zip(generators_of(loader), states, strict=True):
            generator.set_state(state)


def generators_of(loader: object) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, each once."""
    generators: dict[int, torch.Generator] = {}
    for part in _parts(loader):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            generators.setdefault(id(generator), generator)
    return list(generators.values())


def _parts(loader: object) -> Iterator[object]:
    seen: list[object] = []
    pending = [loader]
    while pending:
        part = pending.pop(0)
        if part is None or any(part is other for other in seen):
            continue
        seen.append(part)
        yield part
        # `_loader` is the loader wrapped by torch_xla's MpDeviceLoader.
        pending += [
            getattr(part, name, None) for name in ("_loader", "loader", "batch_sampler", "sampler")
        ]
