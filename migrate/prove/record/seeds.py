"""Seed the random generators of both sides of a proof in the same way."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from migrate.prove.record import drawn
from migrate.prove.settings import SEED
from shims import activate

# Environment variable with the launching process's seed for processes that it spawns. They do not inherit
# the seed, but the rewrite may use it to seed them.
OF_LAUNCHER = "MIGRATE_SEED_OF_LAUNCHER"


def install() -> None:
    """Seed now, and again just before the function of each spawned worker, after its imports."""
    seed_generators()
    _note_seeds()
    spawn: Any = sys.modules["torch.multiprocessing.spawn"]
    spawn._wrap = _after_seeding(spawn._wrap)
    activate.after_import("torch_xla", _seed_xla_workers)


def _seed_xla_workers() -> None:
    from torch_xla._internal import pjrt

    pjrt._SpawnFn.__call__ = _after_seeding(pjrt._SpawnFn.__call__)


def seed_generators() -> None:
    """Seed Python's and numpy's generators with `SEED`, and torch's, unless the script has seeded it."""
    random.seed(SEED)
    np.random.seed(SEED)
    if _by_script:
        _seed_torch(torch.initial_seed())
        return
    _seed_torch(_first())
    spread()


def _seed_torch(seed: int) -> None:
    with drawn.SEED.ignored():
        if os.environ.get(activate.BACKEND) == "simulate-tpu":
            # `torch.manual_seed` opens the TPU, which the process that starts the ranks must not do.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)


def spread() -> None:
    """Give each simulated CUDA device its own seed, as a GPU has in each process."""
    if not _by_script and os.environ.get(activate.BACKEND) == "cpu":
        for index, generator in enumerate(torch.cuda.default_generators):
            generator.manual_seed(_first() + _gpu(index))


def spread_chosen() -> None:
    """Seed the devices again in a process that has chosen its GPU by CUDA_VISIBLE_DEVICES."""
    if _gpu(0) != 0:
        spread()


def _gpu(index: int) -> int:
    """Return the number of the GPU that CUDA would show at `index`."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(chosen[index]) if index < len(chosen) and chosen[index].isdecimal() else index


def of_rank() -> int | None:
    """Return the seed of a TPU in a rank that seeds nothing: each has its own. None: the script seeds it."""
    if _by_script or drawn.SEED.is_given:
        return None
    return _first() + int(os.environ.get("RANK", "0"))


def after_joining(seed: Callable[[], None]) -> None:
    """Call `seed` when this process has joined a group: a spawned process has no rank before."""
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    join = module.init_process_group

    @functools.wraps(join)
    def joined(*args: Any, **kwargs: Any) -> Any:
        result = join(*args, **kwargs)
        seed()
        return result

    module.init_process_group = torch.distributed.init_process_group = joined


def _first() -> int:
    """Return the seed of a process that the script does not seed: the launching process's, if there is
    one.
    """
    return int(os.environ.get(OF_LAUNCHER, SEED))


# Holds True once the script has seeded torch in this process.
_by_script: list[bool] = []


def _note_seeds() -> None:
    seed = torch.manual_seed

    @functools.wraps(seed)
    def manual_seed(number: Any) -> torch.Generator:
        generator = seed(number)
        if not drawn.SEED.is_ignored:
            _by_script[:] = [True]
            os.environ[OF_LAUNCHER] = str(generator.initial_seed())
        return generator

    torch.manual_seed = torch.random.manual_seed = manual_seed


def _after_seeding(function: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps` keeps the name by which a spawned process finds the function.
    @functools.wraps(function)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        seed_generators()
        return function(*args, **kwargs)

    return seeded
