"""`MPI.COMM_WORLD` of the ranks that a torchrun environment names."""  # noqa: N999 - its name

from __future__ import annotations

import os
import pickle
from typing import Any


class _World:
    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        # As the launcher gave it: the scripts set the port anew.
        self._port = int(os.environ.get("MASTER_PORT", "0"))
        self._store: Any = None
        self._calls = 0

    def Get_rank(self) -> int:  # noqa: N802 - MPI's name
        return self.rank

    def Get_size(self) -> int:  # noqa: N802 - MPI's name
        return self.size

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        return self.allgather(value)[root]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        gathered = self.allgather(value)
        return gathered if self.rank == root else None

    def allgather(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        if self._store is None:
            from torch.distributed import TCPStore

            self._store = TCPStore(
                "127.0.0.1", self._port, is_master=self.rank == 0, wait_for_workers=False
            )
        self._calls += 1
        self._store.set(f"{self._calls}/{self.rank}", pickle.dumps(value))
        return [pickle.loads(self._store.get(f"{self._calls}/{rank}")) for rank in range(self.size)]

    def Barrier(self) -> None:  # noqa: N802 - MPI's name
        self.allgather(None)

    barrier = Barrier


COMM_WORLD = _World()
