"""The random state of this process: all generators that a training loop draws from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from shims._shared import world


def get_state(loader: object = None) -> dict[str, Any]:
    """The states of Python's, numpy's, torch's, CUDA's and XLA's generators, and the loader's own.

    Plain containers, numbers and CPU tensors: fit for a checkpoint.
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
    return state


def set_state(state: dict[str, Any], loader: object = None) -> None:
    """Put the generators back where `get_state` found them.

    Those of a device kind that is not in use here are left: draws on another kind of device differ
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
        # Where the CPU answers for CUDA, its state has another size than a GPU's.
        and torch.cuda.get_rng_state().shape == state["cuda"].shape
    ):
        torch.cuda.set_rng_state(state["cuda"])
    if "xla" in state and world.xla_runs():
        sys.modules["torch_xla"].core.xla_model.set_rng_state(state["xla"])


def set_generators(loader: object, states: list[torch.Tensor]) -> None:
    """Put only the loader's own generators back; nothing happens for a loader that is None."""
    if loader is not None:
        for generator, state in zip(generators_of(loader), states, strict=True):
            generator.set_state(state)


def generators_of(loader: object) -> list[torch.Generator]:
    """The generators that a loader and its samplers were given, each once."""
    found: dict[int, torch.Generator] = {}
    for part in _parts(loader):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), generator)
    return list(found.values())


def _parts(loader: object) -> Iterator[object]:
    seen: list[object] = []
    pending = [loader]
    while pending:
        part = pending.pop(0)
        if part is None or any(part is other for other in seen):
            continue
        seen.append(part)
        yield part
        # `_loader` is what torch_xla's MpDeviceLoader wraps.
        pending += [
            getattr(part, name, None) for name in ("_loader", "loader", "batch_sampler", "sampler")
        ]
