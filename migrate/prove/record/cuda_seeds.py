"""Let functions that seed CUDA's random numbers, and keep their state, use the generator of the proof.

For an original on GPUs, each rank with one of them. Its draws equal those of the rewrite, whose device's
generator is on the host too (`record.draws`). A generator that the script creates for CUDA has a twin on the
host, with its seed. Not covered: states that such a generator is set to, and CUDA graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from shims.patches.rng import put_back


class GeneratorHolder(Protocol):
    """Holder of the device's generator, as in `record.draws`."""

    _generator: torch.Generator


def follow(generator: GeneratorHolder) -> None:
    """Replace the functions of `torch.cuda` that seed the devices, and those that return and set their
    state.
    """
    cuda: Any = torch.cuda

    def seeds(name: str) -> None:
        function = getattr(cuda, name)

        @functools.wraps(function)
        def seeded(number: int) -> None:
            function(number)
            generator._generator.manual_seed(int(number))

        _put(name, seeded)

    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return generator._generator.get_state()

    def get_rng_state_all() -> list[torch.Tensor]:
        return [generator._generator.get_state() for _ in range(cuda.device_count())]

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        put_back(generator._generator, new_state.cpu())

    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        for state in new_states:
            put_back(generator._generator, state.cpu())

    for name in ("manual_seed", "manual_seed_all"):
        seeds(name)
    for state in (get_rng_state, get_rng_state_all, set_rng_state, set_rng_state_all):
        _put(state.__name__, functools.wraps(getattr(cuda, state.__name__))(state))


def _put(name: str, function: Any) -> None:
    for module in (torch.cuda, torch.cuda.random):
        setattr(module, name, function)


# For a generator on a device, by its identity: the generator itself, its seed, its twin on the host.
_twins: dict[int, tuple[torch.Generator, int, torch.Generator]] = {}


def on_the_host(generator: torch.Generator) -> torch.Generator:
    """Return the generator to draw from on the host: itself, or the twin of a generator on a device."""
    if generator.device.type == "cpu":
        return generator
    seed = generator.initial_seed()
    known = _twins.get(id(generator))
    if known is None or known[1] != seed:
        known = (generator, seed, torch.Generator().manual_seed(seed))
        _twins[id(generator)] = known
    return known[2]
