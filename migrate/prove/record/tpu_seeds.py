"""Let functions that seed torch_tpu's random numbers, and keep their state, use the generator of the proof.

`torch.manual_seed` seeds the TPU too. The generator that a script takes from `torch.tpu.default_generators`
stands for the one on the host (`record.draws`).
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from migrate.prove.record import drawn
from migrate.prove.record.cuda_seeds import GeneratorHolder
from shims.patches.rng import put_back


class _HostGenerator:
    """Stand-in for the generator of the TPU, which draws on the host."""

    def __init__(self, holder: GeneratorHolder) -> None:
        self._holder = holder

    def get_state(self) -> torch.Tensor:
        return self._holder._generator.get_state()

    def set_state(self, state: torch.Tensor) -> None:
        drawn.SEED.give(zlib.crc32(state.cpu().numpy().tobytes()))
        put_back(self._holder._generator, state.cpu())

    def manual_seed(self, seed: int) -> _HostGenerator:
        drawn.SEED.give(int(seed))
        self._holder._generator.manual_seed(int(seed))
        return self

    def initial_seed(self) -> int:
        return self._holder._generator.initial_seed()


def follow(holder: GeneratorHolder) -> None:
    """Replace the functions of `torch.tpu` that seed, and the generator's state; note `torch.manual_seed`."""
    tpu: Any = torch.tpu
    host = _HostGenerator(holder)
    for name in ("manual_seed", "manual_seed_all"):
        setattr(tpu, name, _seeding(getattr(tpu, name), host))
    tpu.set_rng_state = functools.wraps(tpu.set_rng_state)(
        lambda state, device=None: host.set_state(state)
    )
    tpu.get_rng_state = functools.wraps(tpu.get_rng_state)(lambda device=None: host.get_state())
    tpu.default_generators = (host,)
    seed = torch.manual_seed

    @functools.wraps(seed)
    def manual_seed(number: Any) -> torch.Generator:
        generator = seed(number)
        drawn.SEED.give(generator.initial_seed())
        return generator

    fork = torch.random.fork_rng

    @contextmanager
    @functools.wraps(fork)
    def fork_rng(*args: Any, **kwargs: Any) -> Iterator[None]:
        with drawn.SEED.kept(), fork(*args, **kwargs):
            yield

    torch.manual_seed = torch.random.manual_seed = manual_seed
    torch.random.fork_rng = fork_rng


def _seeding(function: Any, host: _HostGenerator) -> Any:
    @functools.wraps(function)
    def seeded(seed: int) -> None:
        function(seed)
        host.manual_seed(seed)

    return seeded
