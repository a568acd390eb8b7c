"""Registry of the patches of torch, so that they can be listed and undone.

Each concern declares its patches; no other code assigns to torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shims.patches import calls


@dataclass(frozen=True)
class Patch:
    """Patched name of torch, with its replacement.

    Attributes:
        name: the name as a user writes it, "torch.cuda.synchronize".
        answers: the answer here, in one line.
    """

    name: str
    answers: str
    target: Any = field(repr=False, compare=False)
    attribute: str = field(repr=False, compare=False)
    replacement: Any = field(repr=False, compare=False)


def patch(target: Any, attribute: str, replacement: Any, answers: str, *, name: str = "") -> Patch:
    """Declare that `replacement` replaces `target.attribute`; calls of functions are logged.

    The arguments are the fields of `Patch`. `name` defaults to the names of target and attribute.
    """
    owner = getattr(target, "__name__", type(target).__name__)
    module = getattr(target, "__module__", None)
    if not name:
        of_class = f"{module}.{owner}.{attribute}"
        name = of_class if isinstance(target, type) else f"{owner}.{attribute}"
    return Patch(name, answers, target, attribute, calls.logged(name, answers, replacement))


_MISSING = object()


class Registry:
    """Installed patches, with the original objects."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._originals: list[tuple[Patch, Any]] = []

    def install(self, patches: Iterable[Patch]) -> None:
        """Install every patch; installed patches are left unchanged."""
        with self._lock:
            places = {(id(done.target), done.attribute) for done, _ in self._originals}
            for item in patches:
                if (id(item.target), item.attribute) in places:
                    continue
                # From the namespace itself, so that a static method or an inherited name is
                # restored as it was.
                original = vars(item.target).get(item.attribute, _MISSING)
                setattr(item.target, item.attribute, item.replacement)
                self._originals.append((item, original))

    def uninstall(self) -> None:
        """Restore every original object."""
        with self._lock:
            while self._originals:
                item, original = self._originals.pop()
                if original is _MISSING:
                    delattr(item.target, item.attribute)
                else:
                    setattr(item.target, item.attribute, original)

    def installed(self) -> tuple[Patch, ...]:
        """Return the installed patches in the order of their installation."""
        with self._lock:
            return tuple(item for item, _ in self._originals)
