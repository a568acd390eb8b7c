"""What is replaced in torch while the shims answer for CUDA, so that it can be listed and put back.

Each concern declares its patches; nothing else assigns to torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shims.patches import calls


@dataclass(frozen=True)
class Patch:
    """One name of torch and what answers in its place.

    Attributes:
        name: as a user writes it, "torch.cuda.synchronize".
        answers: what it answers here, in one line.
    """

    name: str
    answers: str
    target: Any = field(repr=False, compare=False)
    attribute: str = field(repr=False, compare=False)
    replacement: Any = field(repr=False, compare=False)


def patch(target: Any, attribute: str, replacement: Any, answers: str, *, name: str = "") -> Patch:
    """Declare that `target.attribute` is to be `replacement`; calls of functions are logged.

    Args: as of `Patch`; `name` where it is not made of the target's and the attribute's.
    """
    owner = getattr(target, "__name__", type(target).__name__)
    module = getattr(target, "__module__", None)
    if not name:
        of_class = f"{module}.{owner}.{attribute}"
        name = of_class if isinstance(target, type) else f"{owner}.{attribute}"
    return Patch(name, answers, target, attribute, calls.logged(name, answers, replacement))


_MISSING = object()


class Registry:
    """The patches that are installed, and what stood in their places."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._originals: list[tuple[Patch, Any]] = []

    def install(self, patches: Iterable[Patch]) -> None:
        """Put every patch in its place; one that is there already is left alone."""
        with self._lock:
            places = {(id(done.target), done.attribute) for done, _ in self._originals}
            for item in patches:
                if (id(item.target), item.attribute) in places:
                    continue
                # From the namespace itself: a static method or an inherited name must come back
                # as what it was.
                original = vars(item.target).get(item.attribute, _MISSING)
                setattr(item.target, item.attribute, item.replacement)
                self._originals.append((item, original))

    def uninstall(self) -> None:
        """Put back every original object."""
        with self._lock:
            while self._originals:
                item, original = self._originals.pop()
                if original is _MISSING:
                    delattr(item.target, item.attribute)
                else:
                    setattr(item.target, item.attribute, original)

    def installed(self) -> tuple[Patch, ...]:
        """The patches in their places, in the order of their installation."""
        with self._lock:
            return tuple(item for item, _ in self._originals)
