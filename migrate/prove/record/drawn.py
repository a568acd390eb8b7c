"""Seeds under which a rank draws random numbers on its device, by the line of the script that draws.

Two ranks with the same seed draw the same numbers, with different seeds different numbers. This is separate
from the generator that draws in a proof, which follows more seeds than XLA's own does.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from migrate.prove.record.lines import users_line
from shims import activate

# XLA's initial seed in every process, without a seed of the script; a GPU's differs in each process.
XLA_STARTS_AT = "101"
# Maximum number of lines of the script that are recorded for one step.
MOST_LINES = 20


class Seed:
    """Last seed of this process's device, and the lines that drew since."""

    def __init__(self) -> None:
        self._given: str | None = None
        self._lines: dict[str, str] = {}
        self._ignored = False

    @property
    def value(self) -> str:
        """The seed; without one, the initial seed of this kind of device."""
        if self._given is not None:
            return self._given
        on_xla = os.environ.get(activate.BACKEND) in ("simulate", "xla")
        return XLA_STARTS_AT if on_xla else f"own {os.getpid()}"

    def give(self, seed: object) -> None:
        """Record a seed of the device."""
        if not self._ignored:
            self._given = str(seed)

    @property
    def is_given(self) -> bool:
        """Whether the script has seeded the device."""
        return self._given is not None

    def draw(self) -> None:
        """Record that the running line of the script draws on the device."""
        if len(self._lines) < MOST_LINES and (line := users_line()) is not None:
            self._lines.setdefault(line, self.value)

    def take(self) -> dict[str, str]:
        """Return the seeds by the lines that drew since the last call."""
        lines, self._lines = self._lines, {}
        return lines

    @property
    def is_ignored(self) -> bool:
        """Whether the proof itself is seeding."""
        return self._ignored

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Ignore seeds that the proof itself sets."""
        before, self._ignored = self._ignored, True
        try:
            yield
        finally:
            self._ignored = before

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the seed at the end, as `torch.random.fork_rng` does."""
        before = self._given
        try:
            yield
        finally:
            self._given = before


SEED = Seed()


def follow_cuda(generators: type[Any]) -> None:
    """Record the functions that seed the generators of the simulated devices, and the draws from them.

    Args:
        generators: the class of `shims.patches.rng`.
    """
    for name in ("manual_seed", "manual_seed_all"):
        _before(generators, name, lambda seed: SEED.give(int(seed)))
    _before(
        generators, "set_rng_state", lambda state: SEED.give(zlib.crc32(state.numpy().tobytes()))
    )
    for name in ("seed", "seed_all"):
        _before(generators, name, lambda *_: SEED.give(f"own {os.getpid()}"))
    _at_each_draw(generators)
    fork = torch.random.fork_rng

    @contextmanager
    @functools.wraps(fork)
    def fork_rng(*args: Any, **kwargs: Any) -> Iterator[None]:
        with SEED.kept(), fork(*args, **kwargs):
            yield

    torch.random.fork_rng = fork_rng


def _before(owner: type[Any], name: str, note: Callable[..., None]) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        note(*args[:1])
        return result

    setattr(owner, name, noted)


def _at_each_draw(generators: type[Any]) -> None:
    from shims.patches import rng

    method = generators.drawing

    @functools.wraps(method)
    def drawing(self: Any, func: Any, ordinal: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        drawn = getattr(func, "__wrapped__", func) in rng.DRAW
        if ordinal is not None and drawn and kwargs.get("generator") is None:
            SEED.draw()
        return method(self, func, ordinal, args, kwargs)

    generators.drawing = drawing
