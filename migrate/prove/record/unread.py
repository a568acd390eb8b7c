"""Read the values of an XLA step one sync later, when reading does not wait.

The sync that ends a step only starts its last graph. Reading its values there would stop the program until
they are computed, while otherwise it traces its next step meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

Read = Callable[[], None]


class UnreadValues:
    """Values still to be read, in the order of the steps."""

    def __init__(self) -> None:
        self._traced: list[Read] = []  # no sync has started their graph yet
        self._started: list[Read] = []
        self._at_once = False

    def add(self, read: Read, *, at_once: bool = False) -> None:
        """Call `read` at the sync after the next one, or at the next one.

        Args:
            read: reads values that the next sync computes.
            at_once: whether to call it at the next sync; all earlier values are read before it.
        """
        from torch_xla.core import xla_model

        if not self._traced:
            xla_model.add_step_closure(self._synchronized)
        self._traced.append(read)
        self._at_once = self._at_once or at_once

    def read_all(self) -> None:
        """Read all values now."""
        self._read_started()
        self._started, self._traced = self._traced, []
        self._read_started()

    def _synchronized(self) -> None:
        if self._at_once:
            self._at_once = False
            self.read_all()
            return
        self._read_started()
        self._started, self._traced = self._traced, []

    def _read_started(self) -> None:
        started, self._started = self._started, []
        for read in started:
            read()
