"""Let each process of a run note its rank, and write its stacks on request."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrate.prove.waiting import DIRECTORY, SIGNAL


def install() -> None:
    """Note this process, which has imported torch, and forked processes once they join."""
    folder = Path(os.environ[DIRECTORY])
    if folder.is_dir():
        _Note(folder).take()


class _Note:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = 0

    def take(self) -> None:
        self._answer()
        # Simulated replicas have such names; otherwise the starter of the ranks has set it.
        named = re.fullmatch(r"replica (\d+)", multiprocessing.current_process().name)
        self._rank(named[1] if named else os.environ.get("RANK"))
        self._hook_groups()

    def _answer(self) -> None:
        """Write all stacks when the signal comes: in C, so even while Python waits."""
        self._process = os.getpid()
        path = self._folder / f"{self._process}.stack"
        # No file object, which would warn at the end that it was not closed.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        faulthandler.register(SIGNAL, file=file, all_threads=True)

    def _rank(self, rank: object) -> None:
        text = str(rank)
        if text.isdecimal():
            if os.getpid() != self._process:
                self._answer()
            path = self._folder / f"{self._process}.rank"
            if not path.exists() or path.read_text() != text:
                path.write_text(text)

    def _hook_groups(self) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d

        modules: tuple[Any, ...] = (distributed_c10d, dist)
        for module in modules:
            module.init_process_group = self._noting(module.init_process_group)

    def _noting(self, join: Callable[..., Any]) -> Callable[..., Any]:
        from torch.distributed import distributed_c10d

        @functools.wraps(join)
        def init_process_group(*args: Any, **options: Any) -> Any:
            rank = options.get("rank", args[4] if len(args) > 4 else None)
            self._rank(rank)
            done = join(*args, **options)
            with contextlib.suppress(ValueError, RuntimeError):
                self._rank(distributed_c10d.get_rank())
            return done

        return init_process_group
