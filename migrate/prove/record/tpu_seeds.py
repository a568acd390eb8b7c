"""Let functions that seed torch_tpu's random numbers, and keep their state, use the generator of the proof.

`torch.manual_seed` seeds the TPU too. The generator that a script takes from `torch.tpu.default_generators`
stands for the one on the host (`record.draws`).
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from migrate.prove.record import drawn
from migrate.prove.record.cuda_seeds import GeneratorHolder
from migrate.prove.record.cuda_seeds import on_the_host as _twin
from shims.patches.rng import put_back


class _HostGenerator(torch.Generator):
    """Generator of the TPU to `torch.compile`; scripts seed, save and draw from the one on the host."""

    def __new__(cls, holder: GeneratorHolder) -> _HostGenerator:
        return super().__new__(cls, device="tpu")

    def __init__(self, holder: GeneratorHolder) -> None:
        self._holder = holder

    @property
    def host(self) -> torch.Generator:
        return self._holder._generator

    def get_state(self) -> torch.Tensor:
        return self.host.get_state()

    def set_state(self, new_state: torch.Tensor) -> _HostGenerator:
        _set_state(self._holder, new_state)
        return self

    def manual_seed(self, seed: int) -> _HostGenerator:
        _seed(self._holder, seed)
        return self

    def initial_seed(self) -> int:
        return self.host.initial_seed()


class _DefaultGenerators(Sequence[_HostGenerator]):
    """Generator of the one TPU of a rank, made when it is first asked for: that opens the TPU."""

    def __init__(self, holder: GeneratorHolder) -> None:
        self._made = functools.cache(lambda: (_HostGenerator(holder),))

    def __getitem__(self, index: Any) -> Any:
        return self._made()[index]

    def __len__(self) -> int:
        return 1


def on_the_host(generator: torch.Generator) -> torch.Generator:
    """Return the generator to draw from on the host, for any that a script passes to a draw."""
    return generator.host if isinstance(generator, _HostGenerator) else _twin(generator)


def follow(holder: GeneratorHolder) -> None:
    """Replace the functions of `torch.tpu` that seed, and the generator's state; note `torch.manual_seed`."""
    tpu: Any = torch.tpu
    generators = _DefaultGenerators(holder)
    for name in ("manual_seed", "manual_seed_all"):
        setattr(tpu, name, _seeding(getattr(tpu, name), holder))
    tpu.set_rng_state = functools.wraps(tpu.set_rng_state)(
        lambda state, device=None: _set_state(holder, state)
    )
    tpu.get_rng_state = functools.wraps(tpu.get_rng_state)(
        lambda device=None: holder._generator.get_state()
    )
    tpu.default_generators = generators
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


def _seed(holder: GeneratorHolder, seed: int) -> None:
    drawn.SEED.give(int(seed))
    holder._generator.manual_seed(int(seed))


def _set_state(holder: GeneratorHolder, state: torch.Tensor) -> None:
    drawn.SEED.give(zlib.crc32(state.cpu().numpy().tobytes()))
    put_back(holder._generator, state.cpu())


def _seeding(function: Any, holder: GeneratorHolder) -> Any:
    @functools.wraps(function)
    def seeded(seed: int) -> None:
        function(seed)
        _seed(holder, seed)

    return seeded
